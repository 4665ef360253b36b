"""``table``: from nothing to nothing left to do."""

import json
import os
import re

import pandas as pd
import pytest

from benchmark.cli import main
from benchmark.launch import run
from benchmark.runs import loggers
from benchmark.runs.folder import RunFolder
from run_folders import FACTS, change
from toy_suite import SUITE, table


def made(run):
    return run.config.method.name, run.config.seed


def page(here, name="toy-quick"):
    return (here / "results/tables" / f"{name}.md").read_text()


def times(folder):
    """When the records below a folder were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("record.json")}


def test_table_runs_what_is_missing_once(here, fitted, capsys):
    assert table() == 0
    assert [*map(made, fitted)] == [("fedavg", 1), ("fed_consist", 1), ("fedavg", 2), ("fed_consist", 2)]
    for config in (one.config for one in fitted):
        assert (config.scale, config.runtime.data_dir, config.runtime.devices) == ("quick", "d", "auto")
    files = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert {"record.json", "metrics.jsonl", "config.yaml"} <= {path.name for path in files}
    assert "51.50 ± 6.35 (2)" in page(here)
    assert "51.5000,0.7071,6.35" in (here / "results/tables/toy-quick.csv").read_text()
    assert capsys.readouterr().out.splitlines()[-1] == "results/tables/toy-quick.md (this one and 1 more)"
    assert table() == 0 and len(fitted) == 4
    assert capsys.readouterr().out.endswith("nothing was missing: all 4 runs are complete\n")
    assert files == {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}


def test_further_seeds_stand_beside_the_suites_own(here, fitted):
    """The table keeps what it has; a later call without them shows the suite's own."""
    assert table("--seeds", "1") == 0
    assert table("--seeds", "5", "--methods", "low") == 0
    assert pd.read_csv(here / "results/tables/toy-quick.csv").query("method == 'low'")["n"].tolist() == [2, 2]
    assert "seeds: 1, 2, 5" in page(here)
    assert table("--methods", "low") == 0
    assert "seeds: 1, 2;" in page(here)


def test_a_table_in_another_precision_or_of_other_rounds_has_runs_and_files_of_its_own(here, fitted):
    assert table("--seeds", "1") == 0
    before = page(here)
    assert table("--seeds", "1", "--precision", "64-true", "--threads", "3") == 0
    assert [one.config.precision for one in fitted] == ["32-true"] * 2 + ["64-true"] * 2
    assert fitted[-1].config.runtime.threads == 3
    assert page(here) == before and "precision: 64-true" in page(here, "toy-quick-64-true")
    assert table("--seeds", "1", "--rounds", "7") == 0
    assert [one.config.rounds for one in fitted[4:]] == [7, 7]
    assert "rounds: 7" in page(here, "toy-quick-7_rounds")
    assert table("--seeds", "1", "--rounds", "0") == 2


def test_tables_are_mirrored_where_they_changed_or_where_it_is_asked_for(here, fitted, monkeypatch):
    sent = []
    monkeypatch.setattr(loggers, "mirror_tables", lambda *given: sent.append(given[0]))
    assert table("--seeds", "1", "--only", "1/*/low") == 0 and sent == []  # nobody has asked, and there is no key
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert table("--seeds", "1") == table("--seeds", "1") == 0
    assert sent == ["offline"]
    assert table("--seeds", "1", "--wandb", "offline") == 0 and len(sent) == 2


def test_table_filters_run_less_but_render_everything(here, fitted):
    assert table("--tables", "2", "--seeds", "7") == 0
    text = page(here)
    assert "57.00 (1 of 3)" in text and "Not run: the row mid." in text and "### Table 2: Two" in text
    assert table("--methods", "mid", "--seeds", "7") == table("--only", "1/A/*", "--seeds", "8") == 0
    assert [*map(made, fitted)] == [("fedavg", 7), ("fed_consist", 7), ("fedavg", 8), ("fed_consist", 8)]


@pytest.mark.parametrize("file", ["mine.csv", "tuned/toy-quick.yaml", "admitted/toy-quick.yaml"])
def test_a_damaged_file_beside_the_suite_is_told_before_anything_is_run(here, fitted, capsys, file):
    (here / "toy.yaml").write_text(SUITE.replace("rscfed.csv", "mine.csv"))
    (here / "mine.csv").write_text("table,dataset,method,metric,value\n")
    (here / file).parent.mkdir(exist_ok=True)
    (here / file).write_text("1/A/low: {torn\n" * 2)
    assert table() == 2
    assert file in capsys.readouterr().err and fitted == []


def test_table_reports_failures_and_goes_on(here, fitted, capsys):
    assert table("--seeds", "666,1") == 1
    err = capsys.readouterr().err
    assert err.count("ZeroDivisionError: seed 666") == 4 and "failed: 1/A/low +1, results/runs/fedavg-digits-" in err
    assert "51.00 (1 of 3)" in page(here) and "**2 of 6 runs complete**; failed: " in page(here)
    assert "1 of 3; failed (1)" in (here / "results/tables/toy-quick.csv").read_text()
    assert table("--seeds", "666,1") == 1
    assert [one.config.seed for one in fitted] == [666, 666, 1, 1, 666, 666]


def test_a_record_made_under_other_defaults_is_not_shown(here, fitted, monkeypatch):
    assert table("--seeds", "1") == 0
    for path in here.glob("results/runs/fedavg-*"):
        change(path, lambda record: record["config"]["method"]["init_args"].update(momentum=0.5))
    assert table("--seeds", "1", "--methods", "mid") == 0
    assert "**1 of 4 runs complete**; outdated: " in page(here) and "| outdated (1) " in page(here)
    assert main(["status", "--paper", "toy.yaml", "--seeds", "1"]) == 0


@pytest.mark.parametrize(("more", "again"), [([], ""), (["--overwrite"], " without --overwrite")])
def test_an_interrupted_table_says_which_runs_continue_where(here, monkeypatch, capsys, more, again):
    def interrupted(run):
        run_folder = RunFolder(run.folder)
        run_folder.open(run, FACTS)
        (run_folder.path / "checkpoint.pt").write_bytes(b"")
        run_folder.saved(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", interrupted)
    assert table("--seeds", "1", *more) == 130
    first, second, last = capsys.readouterr().err.splitlines()
    assert first == "0 of 2 runs have ended" and last == f"interrupted; the same command{again} resumes"
    assert second.startswith("  fedavg-digits-") and "after 1 of 2 rounds, from its last check" in second


def test_tables_show_what_runs_have_made_that_were_run_again(here, fitted, monkeypatch, capsys):
    """And not what was there before."""
    assert table() == 0
    monkeypatch.setattr(run, "fit", lambda run: 1 / 0)
    assert table("--overwrite", "--methods", "mid") == 1
    assert "failed (2)" in page(here) and "**2 of 4 runs complete**" in page(here)
    assert "the same command without --overwrite runs only these" in capsys.readouterr().err


REFUSED = [
    "--jobs 0",
    "--accelerator abacus",
    "--slurm= --slurm-bundle 0",
    "--slurm=--partition='open",
    "--only 1/A/no",
]


@pytest.mark.parametrize("refused", REFUSED)
def test_overwrite_deletes_nothing_for_a_command_that_is_refused(here, fitted, capsys, monkeypatch, refused):
    (here / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    assert table() == 0
    before = times(here)
    assert table("--overwrite", *refused.split()) == 2 and times(here) == before


@pytest.mark.parametrize("accepts", [True, False])
def test_overwrite_deletes_what_an_array_runs_again_once_slurm_accepts_it(here, fitted, monkeypatch, accepts):
    sbatch = here / "sbatch"
    sbatch.write_text("#!/bin/sh\n" + ("" if accepts else 'test "$2" = --test-only && exit 1\n') + "echo 7\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    assert table() == 0
    code = table("--overwrite", "--methods", "mid", "--slurm=--partition=gpu")
    assert (code, len(list(here.rglob("record.json")))) == ((0, 2) if accepts else (2, 4))


def test_runs_of_other_code_are_told(here, fitted, capsys):
    assert table() == 0
    for path in here.glob("results/runs/fedavg-*"):
        change(path, lambda record: record["environment"].update(revisions=["method 0, framework 0"]))
    assert table("--tables", "1") == table("--tables", "1") == 0
    note = r"note: 2 complete runs were made by other code of fedavg.*\(method 0, .*; now method 1, "
    assert len(re.findall(note, capsys.readouterr().err)) == 2
    assert table("--tables", "1", "--overwrite") == table("--tables", "1") == 0
    assert "note" not in capsys.readouterr().err, "they are those of today's code"


def test_a_page_says_that_its_runs_are_of_several_versions_of_the_data(here, fitted):
    """Where the data are here, runs of others are outdated; without them nobody knows which are right."""
    assert table("--seeds", "1") == 0
    for path, version in zip(here.glob("results/runs/*"), ("one", "another"), strict=True):
        change(path, lambda record, version=version: record.update(data_sha256={"x.npz": version}))
    assert table("--seeds", "1") == 0
    assert "data of several versions**: x.npz" in page(here) and "outdated" not in page(here)


def test_a_suites_texts_are_no_markup_and_no_commands_to_a_terminal(here, fitted, capsys):
    """In every place of a page, a board and the output."""
    hostile = "<b>x</b> ![p](http://a) \x1b[2J"
    text = SUITE.replace("low", json.dumps(hostile)).replace("title: One", f"title: {json.dumps(hostile)}")
    text = text.replace("note: tiny", f"note: {json.dumps(hostile)}").replace("A toy paper", json.dumps(hostile))
    text = text.replace("metrics: [acc], rows", f"metrics: [acc], reference: {json.dumps(hostile)}, rows")
    (here / "toy.yaml").write_text(text + "ranked: true\n")
    assert table() == 0
    assert main(["status", "--paper", "toy.yaml", "--runs"]) == 0
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    for name in ("toy-quick", "toy-quick-leaderboard"):
        text = page(here, name)
        assert r"\<b>x" in text and not re.search(r"(?<!\\)<b>|(?<!\\)\[p|\x1b", text), name

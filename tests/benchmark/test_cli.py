"""The command line: options, errors in one line, a table from nothing to nothing left to do, partitions."""

import json
import os
import subprocess
import sys

import pytest

from benchmark import cli, config, run
from benchmark.cli import main, split_dotted
from benchmark.config import folder, from_yaml, run_id
from benchmark.launch import placement
from benchmark.launch.environment import ROOT
from benchmark.registry import KINDS, find_class, known_names
from benchmark.report import loggers
from benchmark.report.records import RunFolder, digest, read_record, read_rows, state
from benchmark.suites.suite import available, load
from datamodules.io.sources import digits
from datamodules.partition.partition import Partition

HEAVY = "torch", "lightning", "wandb", "matplotlib", "pandas", "scipy"
FACTS = {"partition_hash": "a", "data_sha256": {}, "labelled_histogram": []}
SUITE = """
paper: toy
title: A toy paper
published: rscfed.csv
report: best
base: {set: {data: digits, data.num_clients: 3, rounds: 2, method.batch_size: 64}}
datasets: {A: {}}
labels: {low: {method: fedavg}, mid: {method: fed_consist, method.warmup_rounds: 1}}
tables:
  1: {title: One, datasets: [A], metrics: [acc], rows: [{method: low}, {method: mid}]}
  2: {title: Two, datasets: [A], metrics: [acc], rows: [{method: low}]}
scales: {quick: {seeds: [1, 2], note: tiny}}
"""


@pytest.fixture
def fitted(monkeypatch):
    """Configurations that reached ``run.fit``, which writes a record of one made-up accuracy."""
    configs = []

    def fit(config):
        configs.append(config)
        if config.seed == 666:
            raise ZeroDivisionError("seed 666")
        folder_ = RunFolder(folder(config))
        if state(folder_.path) == "complete":
            return folder_.path
        folder_.open(config, FACTS)
        for round, acc in ((config.rounds - 2, 50.0), (config.rounds - 1, 49.0)):
            folder_.append({"round": round, "acc": acc + config.seed, "recall": 60.0, "bytes_up": 1, "bytes_down": 2})
        folder_.finish()
        return folder_.path

    monkeypatch.setattr(run, "fit_resolved", fit)
    return configs


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(SUITE)
    return tmp_path


def table(*more):
    return main(["table", "--paper", "toy.yaml", "--jobs", "1", "--data-dir", "d", *more])


def test_split_dotted():
    rest, dotted = split_dotted(
        ["fit", "--method=a", "--method.lambda-u", "1", "--data.beta=5e-1", "--roster.participants", "5",
         "--model-args.dropout", "5e-1", "--data-dir", "x-y", "--eval-every=2"]
    )  # fmt: skip
    assert rest == ["fit", "--method=a", "--data_dir", "x-y", "--eval_every=2"]
    assert dotted == {
        "method.lambda_u": "1",
        "data.beta": "5e-1",
        "roster.participants": 5,
        "model_args.dropout": 0.5,
    }


def test_fit_hands_over_a_resolved_configuration(here, fitted, capsys):
    code = main(
        ["fit", "--method", "rscfed", "--method.lambda_u", "1", "--data", "digits", "--data.beta", "0.3",
         "--model", "small_cnn", "--rounds", "10", "--seed", "1", "--devices", "2", "--precision", "bf16-mixed",
         "--roster.participants", "4", "--results-dir", "out"]
    )  # fmt: skip
    assert code == 0
    (done,) = fitted
    assert done.method.class_path == "methods.rscfed.RSCFed" and done.method.init_args["lambda_u"] == 1.0
    assert done.method.init_args["warmup_rounds"] == 7 and done.data.init_args["beta"] == 0.3
    assert (done.rounds, done.seed, done.precision, done.roster) == (10, 1, "bf16-mixed", {"participants": 4})
    assert (done.runtime.devices, done.runtime.results_dir, done.scale) == (2, "out", "custom")
    assert capsys.readouterr().out == (
        f"{folder(done)}\nbest (round 8): acc 51.00, recall 60.00\nlast (round 9): acc 50.00, recall 60.00\n"
    )


def test_fit_runs_several_seeds_one_after_the_other(here, fitted, capsys):
    """A seed that fails does not keep the others from being run, and the command does not end well."""
    fit = ["fit", "--method", "fedavg", "--data", "digits", "--rounds", "4", "--seed"]
    assert main([*fit, "3,1,3"]) == 0
    assert [config.seed for config in fitted] == [3, 1]
    assert capsys.readouterr().out.count("best (round 2): acc 5") == 2
    assert main([*fit, "0.5"]) == 2 and main([*fit, "4294967296"]) == 2
    assert "--seed 0.5: write numbers" in capsys.readouterr().err


def test_a_warning_before_a_precision_that_is_slow_here(here, fitted, capsys, monkeypatch):
    monkeypatch.setattr("benchmark.commands.common.slow_precision", lambda precision: f"{precision} is slow")
    fit = ["fit", "--method", "fedavg", "--data", "digits", "--rounds", "4", "--precision", "bf16-mixed"]
    assert main([*fit, "--accelerator", "cpu"]) == 0
    assert capsys.readouterr().err.count("warning: bf16-mixed is slow\n") == 1
    assert table("--seeds", "1", "--precision", "bf16-mixed", "--accelerator", "cpu") == 0
    assert capsys.readouterr().err.count("warning: bf16-mixed is slow\n") == 1


def test_version_and_lists(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fssl-bench ")
    for what, name, about in (
        ("methods", "rscfed", "Random sampling consensus"),
        ("data", "digits", "scikit-learn's embedded handwritten digits"),
        ("models", "wrn28_2", "(depth=28, width=2)"),
    ):
        assert main(["list", what]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} ")]
        assert about in line
    assert main(["list", "papers"]) == 2


def test_verify(here, fitted, capsys):
    """0 for equal runs wherever they are, 1 for others; a folder without a run is bad input."""
    fit = ["fit", "--method", "fedavg", "--data", "digits", "--rounds", "4"]
    assert main([*fit, "--seed", "1,2"]) == main([*fit, "--seed", "1", "--results_dir", "again"]) == 0
    one, other = (str(folder(config)) for config in fitted[:2])
    (again,) = map(str, here.glob("again/runs/*"))
    capsys.readouterr()
    assert main(["verify", one, again]) == 0
    assert "config: equal" in capsys.readouterr().out
    assert main(["verify", one, other]) == 1
    assert "config: seed 1 | 2" in capsys.readouterr().out
    assert main(["verify", one, "nowhere"]) == 2


def test_fit_names_the_readings_it_shows(here, fitted, capsys):
    """The best round is chosen by test labels, so the last one stands beside it; a third one where it is reported."""
    fit = ["fit", "--method", "fedavg", "--data", "digits", "--rounds", "4", "--seed", "1", "--last_k", "3"]
    assert main([*fit, "--report", "last_k_mean"]) == main([*fit, "--report", "last_k_mean"]) == 0
    first, again = capsys.readouterr().out.split("results/runs/")[1:]
    assert first.splitlines()[1:] == [
        "best (round 2): acc 51.00, recall 60.00",
        "last (round 3): acc 50.00, recall 60.00",
        "last_k_mean (2 rounds): acc 50.50, recall 60.00",
    ]
    assert again.splitlines()[0].endswith(
        " (was complete, nothing was run; if the code has changed since, delete the folder to run it again)"
    )


def test_fit_from_the_saved_configuration_is_the_same_run_and_options_come_on_top(here, fitted):
    assert main(["fit", "--method", "fedavg", "--data", "digits", "--rounds", "3", "--method.lr", "0.2"]) == 0
    saved = folder(fitted[0]) / "config.yaml"
    assert main(["fit", "--config", str(saved), "--devices", "4"]) == 0
    assert main(["fit", "--config", str(saved), "--rounds", "4", "--method.lr", "0.3", "--data.beta", "2"]) == 0
    first, again, other = fitted
    assert config.identity(first) == config.identity(again) and again.runtime.devices == 4
    assert from_yaml(saved.read_text()).method == first.method
    assert (other.rounds, other.method.init_args["lr"], other.data.init_args["beta"]) == (4, 0.3, 2.0)


def test_fit_starts_from_a_row_of_a_suite(here, fitted):
    """The row's own run; a seed keeps its scale, another option makes it nobody's."""
    row = ["fit", "--suite", "toy.yaml", "--row", "1/A/mid", "--scale", "quick"]
    assert main([*row]) == main([*row, "--seed", "2", "--data_dir", "d"]) == 0
    assert main([*row, "--rounds", "3", "--method.lr", "0.3"]) == 0
    own, seeded, other = fitted
    plan = load("toy.yaml").plan("quick")
    assert {run_id(own), run_id(seeded)} == {run.id for run in plan.runs.values() if "1/A/mid" in run.cells}
    assert (own.seed, seeded.seed, seeded.scale, seeded.runtime.data_dir) == (1, 2, "quick", "d")
    assert (other.rounds, other.method.init_args["lr"], other.scale) == (3, 0.3, "custom")
    assert other.method.init_args["warmup_rounds"] == 1


@pytest.mark.parametrize("paper", available())
def test_every_row_of_a_suite_has_a_name_to_start_from(paper):
    """The full name leads to the row's own run, at the paper's scale."""
    suite = load(paper)
    plan = suite.plan("paper", seeds=[1])
    for row in suite.rows:
        if id(row) in plan.of_row:
            assert plan.of_row[id(suite.row(row.full_name, "paper"))] == plan.of_row[id(row)], row.full_name


def test_a_single_run_of_a_paper_is_the_table_s(here, fitted):
    """At the paper's scale where none is given, with the seed of the command."""
    assert main(["fit", "--suite", "cbafed", "--row", "1/SVHN/cbafed", "--seed", "1338"]) == 0
    suite = load("cbafed")
    (planned,) = suite.select(suite.plan("paper", seeds=[1338]), only=["1/SVHN/cbafed"])
    assert (run_id(fitted[0]), fitted[0].scale) == (planned.id, "paper")
    assert main(["fit", "--suite", "fl2", "--row", "1/SVHN-40/fl2/partition=iid"]) == 0
    assert fitted[1].data.init_args["partition"] == "iid"


def test_a_start_by_names_points_to_the_rows_of_the_papers(here, fitted, capsys):
    """One line, and none where there is no such row, or where the run is one of theirs."""
    assert main(["fit", "--method", "cbafed", "--data", "svhn", "--rounds", "2"]) == 0
    note, *rest = capsys.readouterr().out.splitlines()
    assert note.startswith("note: the constants of a paper's table are others than the defaults; `fit --suite SUITE")
    assert "(cbafed: 1/SVHN/cbafed and 12 more)" in note
    assert len(rest) == 3 and not any("note" in line for line in rest)
    assert main(["fit", "--method", "cbafed", "--data", "digits", "--rounds", "2"]) == 0
    assert main(["fit", "--suite", "cbafed", "--row", "1/SVHN/cbafed"]) == 0
    assert "note" not in capsys.readouterr().out
    spelt = ["--data.picked", "1", "--rounds", "1000", "--report", "last", "--seed", "5"]
    assert main(["fit", "--method", "fedavg", "--data", "cifar100", *spelt]) == 0
    assert "note" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--method", "rscfet", "--data", "digits"], "unknown method 'rscfet'; did you mean 'rscfed'?"),
        (["fit", "--method", "fedavg", "--data", "digit"], "unknown data set 'digit'; did you mean 'digits'?"),
        (["fit", "--data", "digits"], "--method is missing; it is one of cbafed, fed_consist, fedavg, "),
        (["fit", "--method", "fedavg"], "--data is missing; it is one of ag_news, cifar10, "),
        (["fit", "--method.help"], "--method.help needs a value: cbafed, fed_consist, fedavg, "),
        (["fit", "--method", "nowhere.Mine", "--data", "digits"], "No module named 'nowhere'; the folder it lies in "),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--method.lrr", "1"],
            "unknown method argument 'lrr'; did you mean 'lr'?",
        ),
        (["fit", "--method", "fedavg", "--data", "digits", "--data.beta", "x"], "--data.beta x: expected float\n"),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--data.partition", "dirichlt"],
            "data (Digits): --data.partition dirichlt: expected {dirichlet,iid}\n",
        ),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--method.clip_norm", "x"],
            "--method.clip_norm x: expected float or null\n",
        ),
        (["fit", "--method", "fedavg", "--data", "digits", "--data.data_dir", "x"], "'data_dir': give --data_dir "),
        (["fit", "--method", "fedavg", "--data", "digits", "--rounds", "0"], "rounds is 0; it must be at least 1"),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--precision", "16-mixed"],
            "precision '16-mixed' cannot be used",
        ),
        (["fit", "--method", "fedavg", "--data", "digits", "--roundz", "3"], "--roundz 3; did you mean --rounds?"),
        (["fit", "--lr", "0.1"], "--lr 0.1; did you mean --method.lr? ("),
        (["fit", "--method", "rscfed", "--dma_beta_labelled=1"], "=1; did you mean --method.dma_beta_labelled? ("),
        (["fit", "--method", "fedavg", "--data", "digits", "--beta", "1"], "--beta 1; did you mean --data.beta? ("),
        (["describe", "--data", "digits", "--beta", "0.3"], "--beta 0.3; did you mean --data.beta? ("),
        (["status", "--paper", "toy.yaml", "--lr", "1"], "--lr 1 (`--help` lists"),
        (["fit", "--method"], "argument --method: expected one argument (`--help` lists"),
        (["fit", "--rounds", "many"], "--rounds many: expected int"),
        (["fit", "--threads", "many"], "--threads many: expected int or auto"),
        (["fit", "--engine", "fast"], "--engine fast: expected {reference,slots}"),
        (["fit", "--config", "no.yaml"], "--config no.yaml: No such file or directory"),
        (["fit", "--method.lr"], "--method.lr needs a value"),
        (["fit", "--method.lr", "--rounds", "3"], "--method.lr needs a value"),
        (["fit", "--suite", "rscfet", "--row", "1/A/low"], "unknown paper 'rscfet'; did you mean 'rscfed'?"),
        (["fit", "--suite", "rscfed", "--row", "1/CIFAR-10/rscfed"], "did you mean '1/CIFAR-100/rscfed'? `s"),
        (["fit", "--suite", "toy.yaml", "--row", "1/a/lo", "--scale", "quick"], "did you mean '1/A/low'? `status"),
        (["fit", "--suite", "toy.yaml", "--row", "1/A/low"], "unknown scale 'paper'"),
        (["fit", "--suite", "rscfed"], "--suite and --row go together"),
        (["fit", "--row", "1/A/low"], "--suite and --row go together"),
        (["fit", "--suite", "toy.yaml", "--row", "1/A/low", "--config", "x"], "--config and --suite both say where"),
        (["fit", "--suite", "rscfed", "--row", "4/SVHN/rscfed"], "name one of 4/SVHN/rscfed/labelled=1/unlabelled=4, "),
        (["fit", "--suite", "rscfed", "--row", "4/SVHN/improvement"], "difference of rscfed and fed_consist: name"),
        (["table", "--paper", "rscfet"], "unknown paper 'rscfet'; did you mean 'rscfed'?"),
        (["table", "--paper", "toy.yaml", "--scale", "papr"], "unknown scale 'papr'"),
        (["table", "--paper", "toy.yaml", "--tables", "9"], "unknown table '9'. Known: 1, 2"),
        (["table", "--paper", "toy.yaml", "--method.lr", "1"], "table takes no --method.lr"),
        (["status", "--paper", "toy.yaml", "--seeds", "one"], "--seeds one: write numbers separated by commas"),
        (["describe"], "--data is missing; it is one of ag_news, cifar10, "),
        (["describe", "--data", "digits", "--data.partition_file", "no.json"], "cannot use the partition file no.json"),
        (["train"], "train"),
        ([], "subcommand"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_on_stderr(here, fitted, capsys, arguments, message):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert message in err and err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert fitted == [] and out == ""


def test_an_interrupt_says_how_to_go_on(here, monkeypatch, capsys):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit_resolved", interrupted)
    assert main(["fit", "--method", "fedavg", "--data", "digits"]) == 130
    said = capsys.readouterr().err
    assert "interrupted; the same command starts fedavg-digits-" in said and "there is no checkpoint yet" in said


def test_help_of_a_method_lists_its_options(capsys):
    assert main(["fit", "--method.help", "rscfed"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("methods.rscfed.RSCFed: Random sampling consensus") and "Eqs. 5, 6" in out
    options = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
    assert "--method.lr" in options and "--method.model" not in options
    shown = " ".join(out.split())
    for text in (
        "--method.dma_distance {sum_tensor,global_l2} (default sum_tensor) paper L2 norm; released code sum of",
        "--method.lambda_u float (default 0.02) ``lambda_u`` weight of the consistency loss: paper none (1); released",
        "--method.clip_norm float or null (default 5.0) total gradient norm allowed before",
        "--method.reset_momentum {true,false} (default false) forget the optimiser's state",
    ):
        assert text in shown


def test_help_of_a_data_set_says_what_its_options_mean(capsys):
    assert main(["fit", "--data.help", "digits"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--data.partition {dirichlet,iid} (default dirichlet) ``dirichlet`` over clients per class, or" in shown
    assert "--data.mean list[float] or null (default null) per-channel mean" in shown and "data_dir" not in shown


@pytest.mark.parametrize("slot", KINDS)
def test_help_of_every_class(slot, capsys):
    """Its docstring without ``Args:``, and most arguments with a meaning."""
    for name in known_names(KINDS[slot]):
        assert main(["fit", f"--{slot}.help", name]) == 0
        out = capsys.readouterr().out
        assert find_class(name, KINDS[slot]).__doc__.strip()[:30] in out and "Args:" not in out
        lines = out.splitlines()
        bare = [a for a, b in zip(lines, [*lines[1:], ""], strict=True) if a[:4] == "  --" and b[:6] != " " * 6]
        assert len(bare) <= 4, bare


def test_help_of_fit_says_what_labels_and_readings_are():
    _, commands = cli._parser()
    shown = " ".join(commands["fit"].format_help().split())
    for text in (
        "a label in the record (``quick``, ``small``, ``lite``, ``paper`` or ``custom``); it changes no option",
        "``last`` (``final`` in records)",
        "a run with fewer is averaged whole",
    ):
        assert text in shown


def test_options_are_frozen():
    _, commands = cli._parser()
    names = {
        name: {o for a in command._actions for o in a.option_strings if o.startswith("--")} - {"--help"}
        for name, command in commands.items()
    }
    suite = {"--paper", "--scale", "--seeds", "--results_dir"}
    engine = {"--accelerator", "--engine", "--slots", "--replay"}
    where = {*engine, "--data_dir", "--checkpoint_every_s", "--wandb", "--logger", "--callbacks"}
    where |= {"--wandb_project", "--wandb_entity", "--wandb_group", "--wandb_tags"}
    assert names == {
        "fit": {"--config", "--suite", "--row", "--method", "--data", "--model", "--rounds", "--seed", "--scale",
                "--eval_every", "--last_k", "--report", "--precision", "--devices", "--num_nodes", "--threads"}
        | {"--results_dir", "--nonfinite", "--dry_run"}
        | where,
        "table": {"--jobs", "--tables", "--methods", "--only", "--readme", "--slurm", "--precision", "--threads"}
        | {"--dry_run"}
        | suite
        | where,
        "tune": {"--jobs", "--row", "--paper", "--scale", "--results_dir", "--threads"} | where,
        "status": suite | {"--runs"},
        "plot": {"--columns", "--labels", "--out", "--suite", "--row", "--scale", "--results_dir", "--axis"},
        "site": {"--results_dir", "--out", "--papers"},
        "describe": {"--data", "--data_dir", "--seed", "--plot", "--export"},
        "verify": set(),
        "list": set(),
    }  # fmt: skip


def test_table_runs_what_is_missing_once(here, fitted, capsys):
    (here / "README.md").write_text("<!-- table:toy-quick:begin --><!-- table:toy-quick:end -->\n")
    assert table() == 0
    assert sorted((c.method.name, c.seed) for c in fitted) == [
        ("fed_consist", 1), ("fed_consist", 2), ("fedavg", 1), ("fedavg", 2)
    ]  # fmt: skip
    assert {(c.scale, c.runtime.data_dir, c.runtime.devices) for c in fitted} == {("quick", "d", "auto")}
    files = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    names = {path.name for path in files}
    assert {"toy-quick.md", "toy-quick.csv", "record.json", "metrics.jsonl", "config.yaml"} <= names
    assert "51.50 ± 6.35 (2)" in (here / "README.md").read_text()
    assert "51.50,0.7071,6.35" in (here / "results/tables/toy-quick.csv").read_text().replace("51.5000", "51.50")
    *_, path = capsys.readouterr().out.splitlines()
    assert path == "results/tables/toy-quick.md (this one and 1 more)"
    assert table() == 0
    out = capsys.readouterr().out
    assert out == "nothing is missing: all 4 runs are complete, and results/tables/toy-quick.md is up to date\n"
    assert len(fitted) == 4
    assert files == {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}


def test_that_nothing_is_missing_is_seen_without_a_heavy_import(here, fitted):
    """A second call plans nothing; any change of what it rests on makes it look again."""
    assert table("--seeds", "1") == 0
    command = ["table", "--paper", "toy.yaml", "--jobs", "1", "--data-dir", "d", "--seeds", "1"]
    code = "import sys; from benchmark import cli; assert cli.main({}) == 0; print([m for m in {} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def again():
        return subprocess.run(
            [sys.executable, "-c", code.format(command, HEAVY)],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()

    assert again() == [
        "nothing is missing: all 2 runs are complete, and results/tables/toy-quick.md is up to date",
        "[]",
    ]
    page = here / "results/tables/toy-quick.md"
    whole = page.read_text()
    page.write_text("something else")
    assert table("--seeds", "1") == 0 and page.read_text() == whole
    next(here.glob("results/runs/fedavg-*/record.json")).unlink()
    before = len(fitted)
    assert table("--seeds", "1") == 0 and len(fitted) == before + 1


def test_further_seeds_stand_beside_the_suites_own(here, fitted):
    """The table keeps what it has; a later call without them shows the suite's own."""
    assert table("--seeds", "1") == 0
    assert table("--seeds", "5", "--methods", "low") == 0
    text = (here / "results/tables/toy-quick.csv").read_text()
    assert [line.split(",")[9] for line in text.splitlines() if ",low," in line] == ["2", "2"]
    assert "seeds: 1, 2, 5" in (here / "results/tables/toy-quick.md").read_text()
    assert table("--methods", "low") == 0
    assert "seeds: 1, 2;" in (here / "results/tables/toy-quick.md").read_text()


def test_a_missing_page_of_the_leaderboard_is_made_again(here, fitted):
    (here / "toy.yaml").write_text(SUITE.replace("title: One,", "title: One, reference: low,") + "ranked: true\n")
    assert table() == 0
    pages = sorted(here.glob("results/tables/toy-quick-*"))
    assert {page.name.removeprefix("toy-quick-") for page in pages} == {
        "leaderboard.csv",
        "leaderboard.md",
        "pairs.csv",
    }
    for page in pages:
        page.unlink()
    assert table() == 0 and sorted(here.glob("results/tables/toy-quick-*")) == pages


def test_a_label_with_a_comma_can_be_named(here, fitted):
    (here / "toy.yaml").write_text(SUITE.replace("mid", '"mid, twice"'))
    assert table("--methods", "mid, twice", "--seeds", "1") == 0
    assert table("--only", "1/A/mid, twice", "--seeds", "2") == 0
    assert [(c.method.name, c.seed) for c in fitted] == [("fed_consist", 1), ("fed_consist", 2)]


def test_a_table_in_another_precision_has_runs_and_files_of_its_own(here, fitted):
    assert table("--seeds", "1") == 0
    before = (here / "results/tables/toy-quick.md").read_text()
    assert table("--seeds", "1", "--precision", "64-true", "--threads", "3") == 0
    assert [config.precision for config in fitted] == ["32-true"] * 2 + ["64-true"] * 2
    assert fitted[-1].runtime.threads == 3
    assert (here / "results/tables/toy-quick.md").read_text() == before
    assert "precision: 64-true" in (here / "results/tables/toy-quick-64-true.md").read_text()


def test_an_excerpt_in_the_readme(here, fitted):
    """One data set of a table, its first metric, and the rows that have been run."""
    (here / "README.md").write_text("<!-- excerpt:toy-quick-1/A:begin --><!-- excerpt:toy-quick-1/A:end -->\n")
    assert table("--methods", "mid", "--seeds", "1") == 0
    text = (here / "README.md").read_text()
    assert "| mid      | 51.00       | 1" in text and "low" not in text
    assert "**Scale quick: not the paper's protocol.** Data: digits (as A)." in text


def test_a_dry_run_says_what_a_table_takes_and_runs_nothing(here, fitted, capsys):
    assert table("--seeds", "1,2", "--dry-run") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 runs, 8 rounds; 8 rounds are left about " in out and out.count("1 calibration") == 2
    assert "what clients keep between visits takes up to" in out and "are free)" in out
    assert fitted == [] and not list(here.glob("results/**/*"))


def test_a_dry_run_of_a_single_run(here, fitted, capsys):
    command = ["fit", "--suite", "toy.yaml", "--row", "1/A/low", "--scale", "quick"]
    assert main(command) == 0
    assert main([*command, "--seed", "1,2", "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 runs, 4 rounds; 2 rounds are left about " in out and "1 record fedavg on digits" in out
    assert len(fitted) == 1


def test_tables_are_mirrored_where_they_changed_or_where_it_is_asked_for(here, fitted, monkeypatch):
    sent = []
    monkeypatch.setattr(loggers, "mirror_tables", lambda *given: sent.append(given[1:3]))
    assert table("--seeds", "1") == table("--seeds", "1") == 0
    assert sent == [("toy", "quick")]
    (here / "results/tables/toy-quick.md").unlink()
    assert table("--seeds", "1") == 0 and len(sent) == 2
    assert table("--seeds", "1", "--wandb", "offline") == 0 and len(sent) == 3
    assert len(fitted) == 2


def test_table_misses_published_values_before_it_runs(here, fitted, capsys):
    (here / "toy.yaml").write_text(SUITE.replace("rscfed.csv", "mine.csv"))
    assert table() == 2
    assert "published values are missing: there is no mine.csv or " in capsys.readouterr().err and fitted == []


def test_table_filters_run_less_but_render_everything(here, fitted):
    assert table("--tables", "2", "--seeds", "7") == 0
    assert [(c.method.name, c.seed) for c in fitted] == [("fedavg", 7)]
    text = (here / "results/tables/toy-quick.md").read_text()
    assert "57.00 (1 of 3)" in text and "Not run: the row mid." in text and "### Table 2: Two" in text
    assert table("--methods", "mid", "--seeds", "7") == 0
    assert table("--only", "1/A/*", "--seeds", "8") == 0
    assert [(c.method.name, c.seed) for c in fitted[1:]] == [("fed_consist", 7), ("fedavg", 8), ("fed_consist", 8)]


def test_one_truncated_record_does_not_keep_the_other_runs_from_running(here, fitted, monkeypatch, capsys):
    assert table("--seeds", "1") == 0
    low, *_ = sorted(here.glob("results/runs/fedavg-*/record.json"))
    low.write_text(low.read_text()[:100])
    whole = run.fit_resolved

    def fit(config):
        if folder(config) == low.parent.relative_to(here):
            read_record(folder(config))
        return whole(config)

    monkeypatch.setattr(run, "fit_resolved", fit)
    assert table("--seeds", "1,2") == 1
    assert len(fitted) == 2 + 2 and "record.json: cannot be read" in capsys.readouterr().err
    assert "damaged (1)" in (here / "results/tables/toy-quick.md").read_text()


def test_missing_published_values_are_told_before_anything_is_run(here, fitted, capsys):
    (here / "toy.yaml").write_text(SUITE.replace("rscfed.csv", "nothing.csv"))
    assert table() == 2
    assert "published values are missing: there is no nothing.csv" in capsys.readouterr().err and fitted == []


def test_table_reports_failures_and_goes_on(here, fitted, capsys):
    assert table("--seeds", "666,1") == 1
    err = capsys.readouterr().err
    assert err.count("ZeroDivisionError: seed 666") == 4 and "failed: 1/A/low, results/runs/fedavg-digits-" in err
    text = (here / "results/tables/toy-quick.md").read_text()
    assert "51.00 (1 of 3)" in text and "**2 of 6 runs complete**; failed: " in text
    assert "1 of 3; failed (1)" in (here / "results/tables/toy-quick.csv").read_text()
    assert table("--seeds", "666,1") == 1
    assert [c.seed for c in fitted] == [666, 666, 1, 1, 666, 666]


def test_a_record_made_under_other_defaults_is_not_shown(here, fitted, monkeypatch):
    assert table("--seeds", "1") == 0
    for path in here.glob("results/runs/fedavg-*/record.json"):
        record = json.loads(path.read_text().replace('"momentum": 0.9', '"momentum": 0.5'))
        path.write_text(json.dumps({**record, "digest": digest(record, read_rows(path.parent))}))
    assert table("--seeds", "1", "--only", "nothing-to-run/*") == 2
    assert table("--seeds", "1", "--methods", "mid") == 0
    text = (here / "results/tables/toy-quick.md").read_text()
    assert "**1 of 4 runs complete**; outdated: " in text and "| outdated (1) " in text
    assert main(["status", "--paper", "toy.yaml", "--seeds", "1"]) == 0


def test_an_interrupted_table_says_which_runs_continue_where(here, monkeypatch, capsys):
    def interrupted(config):
        run_folder = RunFolder(folder(config))
        run_folder.open(config, FACTS)
        (run_folder.path / "checkpoint.pt").write_bytes(b"")
        run_folder.saved(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit_resolved", interrupted)
    assert table("--seeds", "1") == 130
    first, second = capsys.readouterr().err.splitlines()
    assert first == "interrupted after 0 of 2 runs; the same command"
    assert second.startswith("  continues fedavg-digits-") and "from round 2 of 2, after its last check" in second


def test_status(here, fitted, capsys):
    table("--seeds", "666,1")
    path = next(here.glob("results/runs/fedavg-*"))
    record = read_record(path)
    capsys.readouterr()
    assert main(["status", "--paper", "toy.yaml", "--seeds", "666,1,5"]) == 0
    rows = capsys.readouterr().out
    assert main(["status", "--paper", "toy.yaml", "--seeds", "666,1,5", "--runs"]) == 0
    runs = capsys.readouterr().out
    for out in (rows, runs):
        assert "2 DONE, 2 FAILED, 2 MISSING" in out
        assert "1/A/low, 2/A/low" in out and "51.00" in out and "ZeroDivisionError: seed 666" in out
    assert rows.count("1 DONE, 1 FAILED, 1 MISSING") == 2 and record["run_id"] in runs


def test_plot(here, fitted, capsys):
    table("--seeds", "1")
    runs = [str(path) for path in here.glob("results/runs/fedavg-*")]
    assert main(["plot", *runs, "--columns", "acc", "--out", "curves.png"]) == 0
    assert (here / "curves.png").stat().st_size > 1000
    assert main(["plot", *runs, "--columns", "auc"]) == 2
    assert main(["plot", "nowhere"]) == 2
    errors = capsys.readouterr().err
    assert "no run has a column 'auc'" in errors and "nowhere" in errors


def test_a_real_table_from_nothing(here, monkeypatch):
    monkeypatch.setattr(placement, "cores", lambda: 1)
    assert table("--seeds", "1") == 0
    text = (here / "results/tables/toy-quick.md").read_text()
    assert "digits (as A)" in text and "not run" not in text
    for path in here.glob("results/runs/*"):
        assert read_record(path)["status"] == "complete" and len(RunFolder(path).rows()) == 2


def test_describe_draws_exports_and_imports(here, capsys):
    arguments = ["describe", "--data", "digits", "--data.beta", "0.3", "--data.num_clients", "4"]
    assert main([*arguments, "--export", "part.json", "--plot", "part.png"]) == 0
    out = capsys.readouterr().out
    saved = Partition.load("part.json", digits().train_labels)
    assert saved.hash in out and saved.num_clients == 4 and "1437" in out
    assert (here / "part.png").read_bytes().startswith(b"\x89PNG") and (here / "part.png").stat().st_size > 10_000
    again = ["describe", "--data", "digits", "--data.partition_file", "part.json"]
    assert main([*again, "--data.num_clients", "4"]) == 0
    assert saved.hash in capsys.readouterr().out
    assert main(again) == 2
    assert "part.json has 4 clients; give --data.num_clients 4" in capsys.readouterr().err


def test_describe_shows_the_labels_of_a_server_and_of_many_clients(here, capsys):
    server = ["--data.scenario", "server", "--data.num_labels", "40", "--data.num_clients", "60"]
    assert main(["describe", "--data", "digits", *server, "--data.min_size", "2", "--plot", "server.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].split()[:4] == ["server", "40", "40", "10"]
    assert sum(int(line.split()[1]) for line in lines[4:65]) == 1437 == int(lines[65].split()[1])


def test_starting_up_imports_nothing_heavy():
    code = f"import sys, benchmark.cli; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

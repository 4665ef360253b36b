"""Job arrays on SLURM, with stand-ins for its commands."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmark.config import Runtime, from_dict, run_id
from benchmark.launch import slurm
from benchmark.suites import suite
from datamodules.common.errors import RunError
from datamodules.common.yaml import read_yaml
from toy_suite import table

pytestmark = pytest.mark.usefixtures("here")


def planned(**options):
    """The four runs of the toy suite."""
    return list(suite.load("toy.yaml").plan("quick", **options).runs.values())


def test_a_task_finds_its_run_and_its_folders_wherever_it_runs(tmp_path):
    """``sbatch --chdir`` gives it another working folder than that of the command."""
    runs = planned(runtime=Runtime(data_dir="../d"))
    script = slurm.write(runs, "toy-quick", Path("results"))
    configs = [from_dict(read_yaml(Path(one))) for one in (script.parent / slurm.LIST).read_text().splitlines()]
    assert [run_id(config) for config in configs] == [run.id for run in runs]
    folders = {(config.runtime.data_dir, config.runtime.results_dir) for config in configs}
    assert folders == {(f"{tmp_path}/../d", f"{tmp_path}/results")}


@pytest.mark.parametrize(
    ("task", "codes", "ran", "ends"),
    [
        (1, {}, ["1", "2"], 0),
        (2, {}, ["3"], 0),
        (1, {"1": 3}, ["1", "2"], 3),
        (1, {"1": slurm.STOPPED}, ["1", "requeue 7_1"], slurm.STOPPED),
        (1, {"1": 143}, ["1", "requeue 7_1"], 143),
    ],
    ids=["two of three", "the rest", "one fails", "stopped", "killed while it started"],
)
def test_a_task_runs_its_bundle(tmp_path, task, codes, ran, ends):
    """With commands in SLURM's place that write down what they are asked for."""
    runs = planned()[:3]
    script = slurm.write(runs, "toy-quick", tmp_path / "with 'a quote'", bundle=2)
    assert "#SBATCH --array=1-2\n" in script.read_text()
    commands, done = tmp_path / "commands", tmp_path / "done"
    commands.mkdir()
    numbers = "".join(
        f"*{run.id}.yaml) echo {i} >> {done}; exit {codes.get(str(i), 0)};;\n" for i, run in enumerate(runs, 1)
    )
    for name, body in (("srun", f'case "$6" in\n{numbers}esac'), ("scontrol", f"echo $1 $2 >> {done}")):
        (commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
    assert subprocess.run(["bash", script], env=environment).returncode == ends
    assert done.read_text().splitlines() == ran


def test_the_plan_of_an_array_is_told_and_nothing_is_written(tmp_path, capfd):
    assert table("--slurm=--partition=gpu", "--slurm_bundle", "2", "--dry_run") == 0
    assert capfd.readouterr().out == "4 runs: sbatch --array=1-2 --partition=gpu\n"
    assert not (tmp_path / "results").exists()


def test_a_later_array_leaves_the_list_of_an_earlier_one_alone(tmp_path):
    """Its tasks may still wait, and read their line of the list when they start."""
    runs = planned()
    elsewhere = [run.replace(runtime=Runtime(threads=8)) for run in runs[:1]]
    lists = (runs[:1], runs[1:], elsewhere, runs[:1])
    first, *others, again = (slurm.write(some, "toy-quick", tmp_path) for some in lists)
    assert first == again and len({first, *others}) == 3
    assert f"{runs[0].id}.yaml" in (first.parent / slurm.LIST).read_text()


def test_without_sbatch_the_files_are_written_and_the_error_says_how_to_submit_them(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PATH", "")
    assert table("--slurm=--partition=gpu", "--results_dir", "my results") == 2
    (script,) = tmp_path.glob("my results/slurm/toy-quick-*/job.sh")
    assert f"`sbatch --partition=gpu '{script}'`" in capfd.readouterr().err


def test_what_sbatch_refuses_is_told_in_its_words(tmp_path, monkeypatch):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho sbatch: error: invalid partition specified: $2 >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RunError, match=r"sbatch: error: .* --partition=none"):
        slurm.submit(tmp_path / "job.sh", "--partition=none")

"""Job arrays, one of them on SLURM itself: the daemons of a node on this machine."""

import getpass
import os
import shutil
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.config import Run, from_dict, run_id
from benchmark.launch import slurm
from benchmark.launch.run import fit
from benchmark.runs.records import read_rows, without_clock
from datamodules.common.yaml import read_yaml
from runs import SHORT, configuration
from toy_suite import table
from two_processes import free_port

DAEMONS = ("munged", "slurmctld", "slurmd", "srun")
PATIENCE_S = 100

CLUSTER = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=one NodeHostname=localhost NodeAddr=127.0.0.1 Port={node} CPUs=2
PartitionName=low Nodes=one Default=YES PriorityTier=1 GraceTime=60 State=UP
PartitionName=high Nodes=one PriorityTier=2 PreemptMode=OFF State=UP
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """SLURM's daemons for a node with two processors; its commands find them through ``SLURM_CONF``."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)} (Debian: slurmctld, slurmd, slurm-client, munge)")
    place = tmp_path / "slurm"
    (place / "state").mkdir(parents=True)
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    conf = place / "slurm.conf"
    conf.write_text(CLUSTER.format(folder=place, user=getpass.getuser(), controller=free_port(), node=free_port()))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    munge = [f"--{what}-file={place}/munge.{what}" for what in ("key", "log", "pid", "seed")]
    daemons = [
        ["munged", "--force", "--foreground", f"--socket={place}/munge.socket", *munge],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "one"],
    ]
    with open(place / "log", "wb") as log, ExitStack() as stack:
        for command in daemons:
            daemon = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(daemon.terminate)
            time.sleep(0.5)
        _until(lambda: _lines("sinfo", "--noheader", "--states=idle", "--format=%N", "--Node") == {"one"}, "the node")
        yield


def _lines(*command):
    return set(subprocess.run(command, capture_output=True, text=True).stdout.split())


def _until(true, what):
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.2)


def seeds(results, *numbers, **runtime):
    return [configuration(results, seed=number, **SHORT, **runtime) for number in numbers]


@pytest.mark.parametrize(
    ("task", "code", "ran"),
    [
        (1, 0, ["1", "2"]),
        (2, 0, ["3"]),
        (1, 3, ["1", "2"]),
        (1, slurm.STOPPED, ["1", "requeue 7_1"]),
        (1, 143, ["1", "requeue 7_1"]),
    ],
    ids=["two of three", "the rest", "one fails", "stopped", "killed while it started"],
)
def test_a_task_runs_its_bundle(tmp_path, task, code, ran):
    """With commands in SLURM's place that write down what they are asked for; the first run ends with ``code``."""
    runs = seeds(tmp_path, 1, 2, 3)
    script = slurm.write(runs, "toy-quick", tmp_path / "with 'a quote'", bundle=2)
    assert "#SBATCH --array=1-2\n" in script.read_text()
    commands, done = tmp_path / "commands", tmp_path / "done"
    commands.mkdir()
    cases = [f"*{run.id}.yaml) echo {run.config.seed} >> {done}; exit" for run in runs]
    srun = f'case "$6" in {cases[0]} {code};; {cases[1]};; {cases[2]};; esac'
    for name, body in (("srun", srun), ("scontrol", f"echo $1 $2 >> {done}")):
        (commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
    assert subprocess.run(["bash", script], env=environment).returncode == code
    assert done.read_text().splitlines() == ran


def test_a_command_says_what_it_submits_or_what_stands_in_the_way(here, monkeypatch, capfd):
    """Without ``sbatch`` the files are written, for another machine; what it refuses is told in its words."""
    command = "--seeds", "1", "--results_dir", "my results", "--slurm=--partition=gpu"
    assert table(*command, "--slurm_bundle", "2", "--dry_run") == 0
    assert capfd.readouterr().out == "2 runs: sbatch --array=1-1 --partition=gpu\n"
    assert not (here / "my results").exists()
    monkeypatch.setenv("PATH", str(here))
    assert table(*command) == 2
    (script,) = here.glob("my results/slurm/toy-quick-*/job.sh")
    assert f"`sbatch --partition=gpu '{script}'`" in capfd.readouterr().err
    (here / "sbatch").write_text("#!/bin/sh\necho invalid: $2 >&2\nexit 1\n")
    (here / "sbatch").chmod(0o755)
    assert table(*command) == 2
    assert "failed: invalid: --partition=gpu" in capfd.readouterr().err


def test_a_task_finds_its_run_and_its_folders_wherever_and_whenever_it_runs(tmp_path, monkeypatch):
    """``sbatch --chdir`` changes the working folder; later arrays leave the list alone that it reads when it starts."""
    monkeypatch.chdir(tmp_path)
    runs, elsewhere = seeds("r", 1, 2, runtime__data_dir="../d"), seeds("r", 1, 2)
    first, *others, again = (slurm.write(some, "toy-quick", Path("r")) for some in (runs, runs[:1], elsewhere, runs))
    assert first == again and len({first, *others}) == 3
    configs = [from_dict(read_yaml(Path(line))) for line in (first.parent / slurm.LIST).read_text().splitlines()]
    assert [run_id(config) for config in configs] == [run.id for run in runs]
    folders = {(config.runtime.data_dir, config.runtime.results_dir) for config in configs}
    assert folders == {(f"{tmp_path}/../d", f"{tmp_path}/r")}


@pytest.mark.timeout(300)
def test_a_task_that_is_preempted_saves_goes_back_to_the_queue_and_continues(here, cluster):
    assert (
        table("--seeds", "1", "--only", "1/A/low", "--rounds", "40", "--threads", "1", "--slurm=--partition=low") == 0
    )
    (config,) = here.glob("results/slurm/*/*.yaml")
    run = Run.of(from_dict(read_yaml(config)))
    _until(lambda: len(read_rows(run.folder)) >= 3, "the first rounds")
    urgent = ["sbatch", "--partition=high", "--nodes=1", "--ntasks=2", f"--output={here}/urgent.log", "--wrap=true"]
    subprocess.run(urgent, check=True, capture_output=True)
    _until(lambda: not _lines("squeue", "--noheader", "--format=%i"), "both jobs")
    (log,) = config.parent.glob("*.log")
    told = log.read_text()
    assert "stopped by SIGTERM" in told and "continues from round" in told, told
    again = fit(run.replace(runtime=replace(run.config.runtime, results_dir=str(here / "again"))))
    assert without_clock(read_rows(run.folder)) == without_clock(read_rows(again))

"""Where runs take place."""

from dataclasses import replace

from benchmark.launch.placement import pinned, placed
from benchmark.runs.folder import RunFolder
from run_folders import FACTS
from runs import SHORT, configuration


def begun(run):
    """Leave the folder of a run that was interrupted after its first round."""
    files = RunFolder(run.folder)
    files.open(run, FACTS)
    files.saved(1)


def test_threads_are_those_asked_for_or_as_many_as_before_or_a_share_of_the_cores(tmp_path, machine, monkeypatch):
    machine.cores = 8
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    config = configuration(tmp_path, **{**SHORT, "runtime__threads": "auto"})
    several = config.replace(runtime=replace(config.config.runtime, devices=2))
    asked = config.replace(runtime=replace(config.config.runtime, threads=5))
    nodes = config.replace(runtime=replace(config.config.runtime, devices=1, num_nodes=2))
    assert [placed(one).config.runtime.threads for one in (config, several, nodes, asked)] == [8, 4, 8, 5]
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for running, idle in ((1, 8), (7, 2), (8, 1), (40, 1)):
        machine.write(proc__loadavg=f"6.00 6.00 6.00 {running}/100 4711")
        assert placed(config).config.runtime.threads == idle
    begun(config.replace(runtime=replace(config.config.runtime, threads=2)))
    assert [placed(one).config.runtime.threads for one in (config, several, asked)] == [2, 2, 5]
    monkeypatch.setenv("OMP_NUM_THREADS", "6,1")
    assert [placed(one).config.runtime.threads for one in (config, several, asked)] == [6, 6, 5]


def test_auto_takes_the_tasks_that_slurm_has_started(tmp_path, machine, monkeypatch):
    """Not more, however large the run; in an interactive job there is nothing but the machine."""
    machine.cores = 8
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    auto = {"method": "fedavg", "runtime__devices": "auto", "runtime__threads": "auto", "rounds": 4_000}
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    for tasks, nodes, expected in ((1, 1, (1, 8)), (4, 1, (4, 2)), (4, 2, (2, 4)), (1, 2, (1, 8))):
        monkeypatch.setenv("SLURM_NTASKS", str(tasks))
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", str(tasks))
        runtime = placed(configuration(tmp_path, runtime__num_nodes=nodes, **auto)).config.runtime
        assert (runtime.devices, runtime.threads) == expected
    assert placed(configuration(tmp_path, **{**auto, "runtime__devices": 3})).config.runtime.devices == 3
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")
    assert placed(configuration(tmp_path, **auto)).config.runtime.devices == 1


def test_runs_that_go_on_at_once_share_the_machine(tmp_path, machine, monkeypatch):
    """Cores, and a quarter of the free memory for states, however few runs are left; or what is asked for."""
    machine.cores = 8
    machine.write(proc__meminfo="MemAvailable: 16000000 kB\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    auto = {"runtime__devices": "auto", "runtime__threads": "auto"}
    runs = [configuration(tmp_path, **{**SHORT, **auto, "seed": seed}) for seed in range(4)]
    asked = [run.replace(runtime=replace(run.config.runtime, threads=3, client_memory=0.5)) for run in runs]

    def shares(jobs, runs=runs):
        first, *_ = pinned(runs, jobs)
        return first.config.runtime.devices, first.config.runtime.threads, first.config.runtime.client_memory

    assert [shares(1), shares(4), shares(8, runs[:2])] == [(1, 8, 4.096), (1, 2, 1.024), (1, 1, 2.048)]
    assert shares(2, asked) == (1, 3, 0.5)
    begun(runs[0].replace(runtime=replace(runs[0].config.runtime, devices=1, threads=5)))
    assert shares(2)[1] == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert shares(2)[1] == 6

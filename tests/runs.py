"""Short runs for tests: configurations, classes of a user's own, an interrupted run, equality of runs and of rows."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from benchmark.config import Run, RunConfig, apply, from_dict
from benchmark.federation.loop import Federation
from benchmark.launch.run import fit
from benchmark.runs.records import read_record, read_rows, without_clock

ROUNDS = 8
OPTIONS = {
    "data": "few_digits.FewDigits",
    "data.num_clients": 6,
    "data.partition": "iid",
    "rounds": ROUNDS,
    "method.batch_size": 16,  # three steps a visit
    "seed": 3,
    "last_k": 3,
    "runtime.devices": 1,
    "runtime.threads": 1,
    "runtime.accelerator": "cpu",
    "runtime.wandb": "off",
}
MIXED = {"method": "fed_consist", "method.warmup_rounds": 1, "average_last": 6, "roster.participants": 4}
SHORT = {"method": "fedavg", "rounds": 2}


def configuration(results, **options):
    """Create a run from options with ``__`` for dots, on top of ``OPTIONS``."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    return Run.of(from_dict(apply({}, {**OPTIONS, "runtime.results_dir": str(results), **given})))


def planted(monkeypatch, base, **members):
    """The dotted path of a class as a user may write it, in a module of its own; for runs in this process."""
    module = ModuleType("planted")
    module.Mine = type("Mine", (base,), {**members, "__module__": "planted"})
    monkeypatch.setitem(sys.modules, "planted", module)
    return "planted.Mine"


def assert_same_run(path, other):
    """Assert that two runs' files are equal except for times and hardware."""
    names = {file.name for file in path.iterdir()}
    assert names == {file.name for file in other.iterdir()}
    assert without_clock(read_record(path)) == without_clock(read_record(other))
    assert without_clock(read_rows(path)) == without_clock(read_rows(other))
    assert (path / "config.yaml").read_bytes() == (other / "config.yaml").read_bytes()
    ours, theirs = (torch.load(p / "weights.pt") for p in (path, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(v, theirs[k]) for k, v in ours.items())


def interrupted(run, at):
    """Return the folder of a run that failed at the start of round ``at``, with a checkpoint per round."""
    whole = Federation.run_round

    def breaks(self, number):
        if number == at:
            raise OSError("no space left on device")
        return whole(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "run_round", breaks)
        with pytest.raises(OSError, match="no space"):
            fit(run.replace(runtime=replace(run.config.runtime, checkpoint_every_s=0)))
    return run.folder


def setting(config: RunConfig) -> tuple[object, ...]:
    """What rows of a table share; only bounds see more labels."""
    network = {k: v for k, v in config.model_args.items() if k != "head_dropout"}
    data = {k: v for k, v in config.data.init_args.items() if k != "hidden_labels"}
    shared = config.model, config.rounds, config.roster, config.report, config.eval_every, config.data.class_path
    return (*shared, network, data)

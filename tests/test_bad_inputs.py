"""Every kind of bad input ends with one clear line, exit code 2, and nothing half-written."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmark import cli
from benchmark.runs.records import read_record
from methods.base import LocalWork, Site, Upload
from methods.fedavg import FedAvg
from runs import planted
from toy_suite import SUITE

FIT = (
    "fit --data federations.FewDigits --data.num_clients 3 --data.partition iid --rounds 1 --devices 1 "
    "--threads 1 --accelerator cpu --wandb off"
)
COMMANDS = {
    "": "subcommand",
    "fit --method fedavg": "--data is missing; it is one of ag_news, ",
    "fit --method": "--method: expected one argument",
    "fit --method.lr --rounds 3": "--method.lr needs a value",
    "fit --method.help": "--method.help needs a value: cbafed, ",
    "fit --lr 0.1": "--method.NAME",
    "describe --data digits --data.partition_file no.json": "partition file no.json",
    "describe --data digits --method.lr 0.1": "--method.lr: describe takes no options but those of the data set",
    "describe --data digits --export /nonexistent/x": "No such file or directory; is the folder there",
    "fit --suite toy.yaml": "--suite PAPER --row",
    "fit --suite toy.yaml --row 1/A/lo --scale quick": "did you mean '1/A/low'?",
    "fit --suite rscfed --row 4/SVHN/rscfed": "name one of 4/SVHN/rscfed/labelled=1/unlabelled=4, ",
    "fit --config missing.yaml": "--config missing.yaml: No such file",
    "table --paper toy.yaml --tables 9": "unknown table '9'",
    "table --paper toy.yaml --seeds a,b": "--seeds a,b: write numbers",
    "table --paper toy.yaml --only ,": "--only ,: there is nothing",
    "table --paper toy.yaml --method.lr 1": "table takes no --method.lr",
    "tune --paper rscfed": "no entry `tuning`",
    "plot nowhere": "there is no run at nowhere",
    "list foo": "what foo: expected methods or data",
}
OPTIONS = {
    "--method fedavgg": "unknown method 'fedavgg'; did you mean 'fedavg'?",
    "--method nowhere.Mine": "No module named 'nowhere'",
    "--data methods.fedavg.FedAvg": "not a subclass of datamodules.base.FSSLDataModule",
    "--model os.system": "standard library",
    "--model resnet99": "unknown model 'resnet99'",
    "--model_args.depth 3": "unknown option depth",
    "--model_args.width .inf": "finite numbers",
    "--method.lr .inf": "--method.lr .inf: expected float",
    "--method.lr 0.01,0.03": "--method.lr 0.01,0.03: expected float",
    "--method.lr -1": "error: FedAvg: lr=-1.0 is out of range: from 0",
    "--method.res_skip 0": "error: FedAvg: res_skip=0 is out of range: from 1",
    "--method.lrr 0.1,0.2 --data.beta 1,2": "unknown method argument 'lrr'; did you mean 'lr'?",
    "--data.labelled_histogram [1,x]": "--data.labelled_histogram [1,x]: expected list[int] or null",
    "--roster.participants 99": "error: roster: 99 participants ",
    "--data.partition dirichlt": "--data.partition dirichlt: expected dirichlet or pairs or iid",
    "--data.data_dir x": "give --data_dir instead",
    "--rounds 0": "rounds is 0",
    "--seed -1": "seed is -1",
    "--threads many": "--threads many: expected int or auto",
    "--precision 16-true": "precision '16-true'",
    "--report averaged": "average_last",
    "--num_nodes 2": "nothing has started this process on each of them",
    "--export model.pt --seed 1,2": "--export model.pt: give the name of a file, and one run",
    "--roster.participant 3": "did you mean 'participants'?",
    "--data.num_clients 0": "num_clients=0",
    "--data ag_news --data_dir empty": "ag_news is not in ",
}
CONFIGS = {
    "method: [a": "config.yaml: not valid YAML",
    "method: {class_path: fedavg, init_args: {lr: 1, lr: 2}}": "'lr' occurs twice",
    "model_args: &a {b: *a}": "Circular",
    "method: {class_path: fedavg, init_args: [1]}": "method.init_args is [1]",
    "method: {class_path: fedavg, args: {}}": "unknown: args",
    "method: {class_path: fedavg, init_args: {lr: null}}": "--method.lr null: expected float",
    "method: 5": "method: 5 is no name",
    "rounds: true": "--rounds True: expected int",
    "round: 3": "unknown configuration argument 'round'; did you mean 'rounds'?",
    "runtime: {data_dir: ~/data}": "~",
}
WEIGHT = "model.conv1.weight"
Members = dict[str, Any]


def without_work(self: FedAvg, client: Site) -> LocalWork:
    return []


def uploads(change: Callable[[Any], Any]) -> Callable[..., Upload | None]:
    """A hook that changes what FedAvg uploads."""

    def make_upload(self: FedAvg, client: Site) -> Upload | None:
        upload = FedAvg.make_upload(self, client)
        change(upload)
        return upload

    return make_upload


def with_a_part_named_generator(self: FedAvg, model: nn.Module, **base: Any) -> None:
    FedAvg.__init__(self, model, **base)
    self.generator = nn.Linear(1, 1)  # type: ignore[assignment]


DECLARED: dict[str, Members] = {
    "Mine cannot be made: KeyError: 'width' (": {"__init__": lambda self, model, **base: {}["width"]},
    "'mu' of Mine has no default: give --method.mu": {"__init__": lambda self, model, mu, **base: None},
    "did you mean 'shared'?": {"scopes": {"model": "share"}},
    "did you mean 'model'?": {"scopes": {**FedAvg.scopes, "modle": "personal"}},
    "did you mean 'labelled'?": {"views": {"labeled": {"x": "weak"}}},
    "the view 'wek'": {"views": {"labelled": {"x": "wek"}}},
    "Mine.generator is the framework's own": {"__init__": with_a_part_named_generator},
    "Mine.agregate is never called: did you mean 'aggregate'?": {"agregate": lambda self, uploads: None},
}
HOOKS: dict[str, Members] = {
    "Mine, client 0 (83 images), round 0: KeyError: 'strong' (": {
        "training_step": lambda self, batch, number: batch["labelled"]["strong"]
    },
    "training_step returned a tensor of shape [2]": {"training_step": lambda self, batch, number: torch.zeros(2)},
    "training_step returned {'los': tensor(0.)}": {
        "training_step": lambda self, batch, number: {"los": torch.zeros(())}
    },
    "'personnal'": {"optimizer_scopes": lambda self: ["personnal"]},
    "2 scopes for 1 optimisers": {"optimizer_scopes": lambda self: ["personal", "local"]},
    "there is no client 77": {"select_clients": lambda self, round, roster: [[0, 77]]},
    "'teacher'": {"broadcast": lambda self, server, visit: {**server, "teacher": torch.zeros(1)}},
    "the value has [1]": {"broadcast": lambda self, server, visit: {**server, WEIGHT: torch.zeros(1)}},
    "make_upload leaves out 'model.conv1.weight'": {"make_upload": uploads(lambda made: made.tensors.pop(WEIGHT))},
    "make_upload gives the weight -1.0": {"make_upload": uploads(lambda made: setattr(made, "weight", -1.0))},
    "uploaded model.conv1.weight is not finite": {"make_upload": uploads(lambda made: made.tensors[WEIGHT].div_(0))},
    "SystemExit: 0": {"make_upload": lambda self, client: sys.exit(0)},
    "Mine.aggregate, round 0: 'model.conv1.bias'": {
        "aggregate": lambda self, uploads: self.load_tensors({"model.conv1.bias": torch.zeros(1)})
    },
    "Mine.aggregate, round 0: it returned a value": {"aggregate": lambda self, uploads: uploads[0].tensors},
    "Mine.select_clients, round 0: it returned [0, 1]": {"select_clients": lambda self, round, roster: [0, 1]},
    "depends on no trained parameter": {"training_step": lambda self, batch, number: torch.zeros(())},
    "'loss' is 0.5; give a tensor": {"make_upload": uploads(lambda made: made.stats.update(loss=0.5))},
    "make_upload returned a dict": {"make_upload": lambda self, client: {}},
    "remember, round 0: it returned a list": {"remember": lambda self, uploads: []},
    "Mine.predict, round 0: it gives the shape": {"predict": lambda self, images: self(images)[:, :5].softmax(1)},
    "'server'": {"remember": lambda self, uploads: {"server": {"x": torch.zeros(1)}}},
    "class probabilities run from ": {"predict": lambda self, images: self(images)},
}
BEFORE = COMMANDS | {f"{FIT} --method fedavg {given}": says for given, says in OPTIONS.items()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a suite."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(SUITE)
    (tmp_path / "empty").mkdir()
    return tmp_path


Told = Callable[..., str]


@pytest.fixture
def error_of(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """The one line that a command ends with; ``members`` make a method of FedAvg."""

    def told(command: str, members: Members | None = None) -> str:
        method = f" --method {planted(monkeypatch, FedAvg, **members)}" if members else ""
        capsys.readouterr()
        assert cli.main(shlex.split(command + method)) == 2
        told = capsys.readouterr().err
        assert "Traceback" not in told
        last = told.splitlines()[-1]
        assert last.startswith("error: ")
        return last

    return told


@pytest.mark.parametrize("command", BEFORE, ids=lambda command: command.removeprefix(FIT)[:80])
def test_what_cannot_be_run_leaves_nothing(command: str, here: Path, error_of: Told) -> None:
    before = set(here.rglob("*"))
    assert BEFORE[command] in error_of(command)
    assert not [path for path in set(here.rglob("*")) - before if path.is_file()]


@pytest.mark.parametrize(("text", "says"), CONFIGS.items())
def test_a_configuration_file(text: str, says: str, here: Path, error_of: Told) -> None:
    (here / "config.yaml").write_text(text)
    more = "" if text.startswith("method") else "--method fedavg"
    assert says in error_of(f"fit --config config.yaml --data digits {more}")
    assert not (here / "results").exists()


@pytest.mark.parametrize(("says", "members"), DECLARED.items(), ids=DECLARED)
def test_a_wrong_declaration(says: str, members: Members, here: Path, error_of: Told) -> None:
    assert says in error_of(FIT, members)
    assert not [path for path in here.glob("results/**/*") if path.is_file()]


@pytest.mark.parametrize(("says", "members"), HOOKS.items(), ids=HOOKS)
def test_a_hook_leaves_a_failed_record(says: str, members: Members, here: Path, error_of: Told) -> None:
    """The error names the method, the hook or the client, and the round; no checkpoint stays."""
    assert says in error_of(FIT, {"local_work": without_work, **members} if "training_step" not in members else members)
    (path,) = here.glob("results/runs/*")
    assert read_record(path)["status"] == "failed"
    assert not [file for file in path.iterdir() if file.name.endswith(".tmp") or file.name.startswith("checkpoint")]


def test_the_methods_are_wrong_in_one_thing_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the others are variants of runs."""
    method = planted(monkeypatch, FedAvg, local_work=without_work)
    assert cli.main(shlex.split(f"{FIT} --method {method}")) == 0

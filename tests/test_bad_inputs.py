"""Every kind of bad input ends with one clear line, exit code 2, and nothing half-written."""

import shlex
from pathlib import Path

import pytest

from benchmark import cli
from benchmark.runs.records import read_record
from toy_suite import SUITE

FIT = (
    "fit --method fedavg --data federations.FewDigits --data.num_clients 3 --data.partition iid --rounds 1 --devices 1 "
    "--threads 1 --accelerator cpu --wandb off"
)
COMMANDS = {
    "": "subcommand",
    "fit": "--method is missing; it is one of cbafed, ",
    "fit --method fedavg": "--data is missing; it is one of ag_news, ",
    "fit --method": "--method: expected one argument",
    "fit --method.lr --rounds 3": "--method.lr needs a value",
    "fit --method.help": "--method.help needs a value: cbafed, ",
    "fit --lr 0.1": "--method.NAME",
    "describe --data digits --data.partition_file no.json": "partition file no.json",
    "fit --suite toy.yaml": "--suite PAPER --row",
    "fit --suite toy.yaml --row 1/A/lo --scale quick": "did you mean '1/A/low'?",
    "fit --suite rscfed --row 4/SVHN/rscfed": "name one of 4/SVHN/rscfed/labelled=1/unlabelled=4, ",
    "fit --config missing.yaml": "--config missing.yaml: No such file",
    "table --paper rscfet": "did you mean 'rscfed'?",
    "table --paper toy.yaml --tables 9": "unknown table '9'",
    "table --paper toy.yaml --seeds a,b": "--seeds a,b: write numbers",
    "table --paper toy.yaml --only ,": "--only ,: there is nothing",
    "table --paper toy.yaml --method.lr 1": "table takes no --method.lr",
    "tune --paper rscfed": "no entry `tuning`",
    "admit --paper rscfed": "no entry `admission`",
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
    "--method.batch_size 0": "batch_size=0 is out of range",
    "--method.clip_norm x": "--method.clip_norm x: expected float or null",
    "--data.partition dirichlt": "--data.partition dirichlt: expected dirichlet or pairs or iid",
    "--data.data_dir x": "give --data_dir instead",
    "--roundz 3": "--roundz 3",
    "--rounds 0": "rounds is 0",
    "--seed -1": "seed is -1",
    "--threads many": "--threads many: expected int or auto",
    "--precision 16-true": "precision '16-true'",
    "--report averaged": "average_last",
    "--num_nodes 2": "nothing has started this process on each of them",
    "--export model.pt --seed 1,2": "--export model.pt: it takes the name of a file, and one run",
    "--export model.pt --dry-run": "--export model.pt: it takes the name of a file, and one run",
    "--callbacks nowhere.Mine": "--callbacks nowhere.Mine",
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
    "runtime: {device: 2}": "did you mean 'devices'?",
    "runtime: {data_dir: ~/data}": "~",
}
METHODS = {
    "Mini": "no attribute 'Mini'",
    "Plain": "not a subclass of methods.base.FedMethod",
    "Constructor": "Constructor cannot be made: KeyError: 'width' (",
    "Required": "'mu' of Required has no default: give --method.mu",
    "ScopeValue": "did you mean 'shared'?",
    "ScopePrefix": "did you mean 'model'?",
    "ViewsStream": "did you mean 'labelled'?",
    "ViewsName": "the view 'wek'",
    "HookName": "HookName.agregate is never called: did you mean 'aggregate'?",
}
HOOKS = {
    "StepRaises": "StepRaises, client 0 (83 images), round 0: KeyError: 'strong' (",
    "StepVector": "training_step returned tensor(",
    "StepDetached": "does not require grad",
    "OptimizerScope": "'personnal'",
    "SelectsUnknown": "there is no client 77",
    "SendsUnknown": "'teacher'",
    "SendsShape": "the value has [1]",
    "UploadLacks": "make_upload leaves out 'model.conv1.weight'",
    "UploadWeight": "make_upload gives the weight -1.0",
    "AggregateShape": "AggregateShape.aggregate, round 0: 'model.conv1.bias'",
    "RemembersKey": "'server'",
    "PredictsLogits": "class probabilities run from ",
}
BEFORE = [
    *COMMANDS.items(),
    *((f"{FIT} {given}", says) for given, says in OPTIONS.items()),
    *((f"{FIT} --method bad_methods.{name}", says) for name, says in METHODS.items()),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a suite."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(SUITE)
    (tmp_path / "empty").mkdir()
    return tmp_path


def error_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command ends with."""
    capsys.readouterr()
    assert cli.main(shlex.split(command)) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    last = told.splitlines()[-1]
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize(("command", "says"), BEFORE, ids=[command.removeprefix(FIT) for command, _ in BEFORE])
def test_what_cannot_be_run_leaves_nothing(
    command: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(here.rglob("*"))
    assert says in error_of(command, capsys)
    assert not [path for path in set(here.rglob("*")) - before if path.is_file()]


@pytest.mark.parametrize(("text", "says"), CONFIGS.items())
def test_a_configuration_file(text: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "config.yaml").write_text(text)
    more = "" if text.startswith("method") else "--method fedavg"
    assert says in error_of(f"fit --config config.yaml --data digits {more}", capsys)
    assert not (here / "results").exists()


@pytest.mark.parametrize(("name", "says"), HOOKS.items())
def test_a_hook_leaves_a_failed_record(name: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the method, the hook or the client, and the round; no checkpoint stays."""
    assert says in error_of(f"{FIT} --method bad_methods.{name}", capsys)
    (path,) = here.glob("results/runs/*")
    assert read_record(path)["status"] == "failed"
    assert not [file for file in path.iterdir() if file.name.endswith(".tmp") or file.name.startswith("checkpoint")]


def test_the_methods_are_wrong_in_one_thing_only(here: Path) -> None:
    """The one that the others are variants of runs."""
    assert cli.main(shlex.split(f"{FIT} --method bad_methods.Idle")) == 0

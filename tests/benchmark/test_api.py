"""Federations from Python: in memory and with a record, with names and with classes that no module has."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmark.api import Result, fit, load_rounds, load_run, load_runs
from benchmark.config import Runtime
from benchmark.contract.federations import make_method
from benchmark.runs.folder import RunFolder
from benchmark.runs.records import without_clock
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError, RunError
from datamodules.digits import Digits
from few_digits import FewDigits
from methods.base import FedMethod
from run_folders import FACTS, completed
from toy_suite import SUITE

FEW = "few_digits.FewDigits"
DATA = {"num_clients": 3, "labelled_clients": 3, "partition": "iid"}
OPTIONS = {"rounds": 2, "seed": 5, "data_args": DATA, "threads": 1}

pytestmark = pytest.mark.usefixtures("here")


def test_in_memory_and_with_a_record_it_is_the_same_run(here):
    """The numbers are equal, and only the second one writes; a complete one is not run again."""
    options = {"method_args": {"lr": 0.05}, "average_last": 2, "precision": "bf16-mixed", **OPTIONS}
    in_memory = fit("fedavg", "digits", **options)
    assert list(here.iterdir()) == [here / "toy.yaml"] and in_memory.path is None
    recorded = fit("fedavg", Digits, results_dir="out", wandb="off", **options)
    assert recorded.path.parent == here.joinpath("out/runs").relative_to(here)
    assert without_clock(recorded.rows) == without_clock(in_memory.rows)
    assert recorded.config.method == in_memory.config.method
    assert recorded.readings.equals(in_memory.readings)
    ours, theirs = (one.method.tensors("shared") for one in (recorded, in_memory))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert fit("fedavg", "digits", results_dir="out", wandb="off", **options).rows == recorded.rows  # with their clock

    rounds, readings = recorded.rounds, recorded.readings
    assert rounds["round"].tolist() == [0, 1] and {"acc", "loss", "bytes_up", "timing.seconds"} <= set(rounds)
    assert list(readings.index) == ["final", "best", "last_k_mean", "averaged"]
    assert readings.loc["averaged", "acc"] == load_runs("out")["averaged.acc"].item()
    assert readings.loc["final", "acc"] == rounds["acc"].iloc[-1] == round(recorded.test()["acc"], 4)
    assert repr(recorded).startswith("fedavg on digits, seed 5, 2 of 2 rounds\n") and "last_k_mean" in repr(recorded)
    assert "seed 5, 1 of 2 rounds" in repr(Result(recorded.run, recorded.rows[:1]))
    assert load_runs("nowhere").query("status == 'complete'").empty
    runs = load_runs("out")
    assert runs["final.acc"].tolist() == [readings.loc["final", "acc"]]
    assert runs["path"].tolist() == [str(recorded.path)] and runs["status"].tolist() == ["complete"]
    (recorded.path / "weights.pt").unlink()
    with pytest.raises(RunError, match=r"weights\.pt"):
        load_run(recorded.path).method  # noqa: B018


def test_loaded_weights_predict_what_the_run_predicts(here):
    """Static norms, too, which know their statistics from what was loaded."""
    labels = {"num_clients": 4, "scenario": "server", "num_labels": 50, "pipeline": "randaugment_uniform"}
    network = {"model": "wrn28_2", "model_args": {"depth": 10, "width": 1}}
    args = {"rounds": 1, "seed": 3, "data_args": labels, "threads": 1, **network}
    method = {"method_args": {"local_epochs": 1, "server_epochs": 1, "server_batch_size": 25}}
    recorded = fit("semifl", FEW, results_dir="out", wandb="off", **method, **args)
    in_memory = fit("semifl", FEW, **method, **args)
    images = torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(recorded.method.predict(images), in_memory.method.predict(images))


@pytest.mark.parametrize(
    ("given", "told"), [({"runtime": {}}, "separate"), ({"accelerator": "gpu"}, "cuda"), ({"devices": 2}, "a record")]
)
def test_what_fit_does_not_know_is_refused(given, told):
    with pytest.raises(ConfigError, match=told):
        fit("fedavg", "digits", **given, **OPTIONS)


@pytest.mark.parametrize("more", [{}, {"results_dir": "out", "wandb": "off"}])
def test_draws_and_threads_of_the_caller_stay_as_they_are(more):
    before = torch.get_num_threads()
    torch.manual_seed(1)
    next_draw = torch.rand(())
    torch.manual_seed(1)
    fit("fedavg", FEW, **{**OPTIONS, "rounds": 1, "threads": before + 1}, **more)
    assert torch.get_num_threads() == before
    assert torch.rand(()) == next_draw


def test_a_busy_machine_gets_as_many_threads_as_cores_are_idle(here, machine, monkeypatch):
    """As with the command; and never more than the caller has set."""
    machine.cores = 4
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)

    class Counting(FedMethod):
        def training_step(self, batch, batch_idx):
            seen.append(torch.get_num_threads())
            return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])

    for running, own, used in ((3, 4, 2), (1, 3, 3)):
        machine.write(proc__loadavg=f"0 0 0 {running}/100 4711")
        torch.set_num_threads(own)
        seen = []
        fit(Counting, FEW, rounds=1, data_args=DATA)
        assert set(seen) == {used}


def test_numbers_of_numpy_and_paths_are_taken(here):
    taken = fit("fedavg", FEW, **{**OPTIONS, "rounds": 1, "seed": np.int64(5), "data_dir": here / "data"}).config
    assert taken.seed == 5 and type(taken.seed) is int
    assert taken.runtime.data_dir == str(here / "data")


def test_rounds_under_the_names_of_a_suites_rows(here):
    """Of complete runs alone; columns that tell rows of one name apart are part of the name."""
    two = "rows: [{method: low}, {method: low, partition: iid, set: {data.partition: iid}}, {method: mid}]"
    here.joinpath("toy.yaml").write_text(SUITE.replace("rows: [{method: low}, {method: mid}]", two))
    assert len(load_rounds("toy.yaml", "quick", "out")) == 0
    suite = load("toy.yaml")
    plan = suite.plan("quick", runtime=Runtime(results_dir="out"))
    plain, other, mid = suite.rows[:3]
    for row, seed in ((plain, 1), (plain, 2), (other, 1), (other, 2), (mid, 1)):
        completed(plan.run(row, seed), 10.0 * seed, 10.0 * seed + 1)
    RunFolder(plan.run(mid, 2).folder).open(plan.run(mid, 2), FACTS)
    rounds = load_rounds("toy.yaml", "quick", "out").query("table == '1'")
    assert list(rounds.columns) == ["table", "dataset", "row", "seed", "round", "acc"]
    assert dict(rounds["row"].value_counts()) == {"low": 4, "low/partition=iid": 4, "mid": 2}
    own = rounds.query("row == 'low' and dataset == 'A'")
    assert own["seed"].tolist() == [1, 1, 2, 2] and own["acc"].tolist() == [10.0, 11.0, 20.0, 21.0]
    assert rounds["round"].dtype == rounds["seed"].dtype == "int64"
    with pytest.raises(ConfigError, match="'qick'"):
        load_rounds("toy.yaml", "qick", "out")


def test_classes_that_no_module_has():
    """The latest definition counts, and gets what its constructor asks for, with a default or without."""

    class Fewer(FewDigits):
        """Half of them."""

        kept = (125, 45)

    def defined(scale):
        class Mine(FedMethod):
            """Scaled cross-entropy."""

            def __init__(self, model, make_model, num_classes=7, image_shape=None, **base):
                super().__init__(model, **base)
                self.twin = make_model()

            def training_step(self, batch, batch_idx):
                samples = batch["labelled"]
                return scale * F.cross_entropy(self(samples["x"]), samples["y"])

        return Mine

    first, second = (fit(defined(scale), Fewer, method_args={"lr": 0.1}, **OPTIONS) for scale in (1.0, 0.5))
    assert first.config.method == second.config.method and first.config.method.init_args["lr"] == 0.1
    assert without_clock(first.rows) != without_clock(second.rows)
    assert first.method.hparams.num_classes == 10 and first.method.hparams.image_shape == [3, 32, 32]
    twin, model = (list(network.parameters()) for network in (first.method.twin, first.method.model))
    assert [p.shape for p in twin] == [p.shape for p in model] and not torch.equal(twin[0], model[0])
    assert make_method(defined(1.0), num_classes=5).hparams.num_classes == 5
    for method, network in ((defined(1.0), "mlp"), ("fedavg", "__main__.Net")):
        with pytest.raises(ConfigError, match="put it into a module, or leave results_dir out"):
            fit(method, "digits", results_dir="out", **{**OPTIONS, "model": network})

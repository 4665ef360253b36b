"""The FedDB suite: protocol of the tables, published values, and that nothing is invented where none is known."""

from typing import Any

import pytest

from benchmark.config import RunConfig
from benchmark.report.tables import render
from benchmark.suites.plan import Plan
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError
from papers import load


@pytest.fixture(scope="module")
def feddb() -> Suite:
    return load("feddb")


@pytest.fixture(scope="module")
def quick(feddb: Suite) -> Plan:
    return feddb.plan("quick")


def config(feddb: Suite, table: str, dataset: str, method: str, scale: str = "paper") -> RunConfig:
    row = next(r for r in feddb.rows if (r.table, r.dataset, r.method) == (table, dataset, method))
    return feddb.run(row, scale).config


def test_published_values_are_those_of_table_1_and_no_other(feddb: Suite) -> None:
    values = feddb.published()
    means = {key for key in values if key[-1] == "acc"}
    assert len(means) == 30 and {key[0] for key in means} == {"1"}
    assert means == {row.key("acc") for row in feddb.rows if row.table == "1"}
    assert values["1", "CIFAR10-4000", "FedDB", (("partition", "iid"),), "acc"] == "67.32"
    assert values["1", "SVHN-1000", "SemiFL", (("partition", "iid"),), "acc std"] == "10.03"


@pytest.mark.parametrize("dataset", ["CIFAR10-4000", "SVHN-1000", "CIFAR100-10000"])
def test_paper_scale_is_the_protocol(feddb: Suite, dataset: str) -> None:
    name, labels = dataset.split("-")
    shared: dict[str, Any] = {
        "lr": 0.03,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "clip_norm": 1.0,
        "local_epochs": 5,
        "lr_schedule": "cosine",
        "reset_momentum": False,
    }
    for method in ("FedAvg", "FixMatch", "SemiFL", "FedRGD", "FixMatch-FedDPL", "FedDB"):
        run = config(feddb, "1", dataset, method)
        data, args = run.data.init_args, run.method.init_args
        assert (run.model, run.rounds, run.roster, run.report) == ("wrn28_2", 800, {"participants": 10}, "best")
        assert run.model_args == {"norm": "group" if method == "FedRGD" else "batch"}
        assert (data["scenario"], data["num_clients"], data["num_labels"]) == ("all_clients", 100, int(labels))
        assert (data["partition"], data["partition_seed"], data["union_mode"]) == ("iid", None, "labelled")
        assert (data["pipeline"], data["flip"]) == ("randaugment_maximal", 0.0 if name == "SVHN" else 0.5)
        assert args.items() >= shared.items()
        assert args["server_momentum"] == (0.0 if method == "FedRGD" else 0.5)
        assert (args["eval_batch"], args.get("aggregation")) == (250, "dma" if method == "FedDB" else None)
        if method != "FedAvg":
            assert (args["threshold"], args["full_batch"]) == (0.95, True)
            assert args["dpl"] == (method in ("FixMatch-FedDPL", "FedDB"))
    assert feddb.scale("paper")["seeds"] == [0, 1, 2, 3]


def test_skewed_tables(feddb: Suite) -> None:
    for table, beta in (("2", 0.1), ("3", 0.3)):
        data = config(feddb, table, "SVHN-4000", "FedDB").data.init_args
        assert (data["partition"], data["beta"], data["min_size"]) == ("dirichlet", beta, 1)
        assert (data["num_labels"], data["shuffle"], data["flip"]) == (4000, False, 0.0)
    released = config(feddb, "presets", "CIFAR10-4000", "as released")
    assert released.data.init_args["union_mode"] == "code_index"


@pytest.mark.parametrize("scale", ["paper", "lite", "small", "quick"])
def test_the_printed_dirichlet_law_has_a_control(feddb: Suite, scale: str) -> None:
    """A row that changes nothing else, and the row of all that the paper says."""
    plain = config(feddb, "presets", "CIFAR10-4000", "FedDB", scale)
    control = config(feddb, "presets", "CIFAR10-4000", "one draw per client", scale)
    assert control.data.init_args == plain.data.init_args | {"partition_variant": "per_client"}
    assert (control.method, control.model_args, control.rounds) == (plain.method, plain.model_args, plain.rounds)
    assert plain.data.init_args["partition_variant"] == "per_class"
    written = config(feddb, "presets", "CIFAR10-4000", "as written", scale)
    assert written.data.init_args["partition_variant"] == "per_client"


def test_small_leaves_out_variants_of_what_it_replaces(feddb: Suite) -> None:
    """Its network has neither static nor group norm, so these rows would be other rows' runs under another name."""
    plan = feddb.plan("small")
    gone = {row.method for row in feddb.rows if row.full_name not in plan.of_row and not row.pending}
    assert gone == {"static norm", "FedRGD 8 groups"}
    presets = next(t for t in render(feddb, plan, feddb.published()) if t.number == "presets")
    assert not gone & set(presets.frame["method"])
    assert "not at this scale: static norm (the run of FedDB, since this network keeps running stat" in presets.markdown
    with pytest.raises(ConfigError, match=r"not at scale small: static norm \(the run of FedDB"):
        feddb.select(plan, methods=["static norm"])
    paper = feddb.plan("paper")
    assert {row.method for row in feddb.rows if row.full_name in paper.of_row} >= gone


def test_quick_runs_every_row_that_its_network_can_have(feddb: Suite, quick: Plan) -> None:
    """The perceptron has no norms, and no client has more labels than a batch of FedAvg's; where only convolutions
    train, the network has some.
    """
    copy = "methods.ablations.fedmatch.SemiFLsCopy"
    for run in quick.runs.values():
        network = "lenet" if run.config.method.class_path == copy else "mlp"
        assert (run.config.data.name, run.config.model) == ("digits", network)
    assert not [row.name for row in feddb.rows if row.pending]
    gone = {row.method for row in feddb.rows if row.full_name not in quick.of_row}
    assert gone == {"static norm", "FedRGD 8 groups", "FedAvg full batch"}


def test_fedmatch_is_a_port_in_the_frame_of_the_others(feddb: Suite) -> None:
    """Full batches and the threshold of the table; the plug-in changes nothing else."""
    plain = config(feddb, "1", "CIFAR10-4000", "FedMatch")
    plugged = config(feddb, "1", "CIFAR10-4000", "FedMatch-FedDPL")
    args = plain.method.init_args
    assert (args["batches"], args["threshold"], args["server_momentum"]) == ("full", 0.95, 0.5)
    assert (args["dpl"], args["lr"], args["eval_batch"], args["delta"]) == (False, 0.03, 250, 5e-5)
    assert plugged.method.init_args == {**args, "dpl": True}
    assert plugged.data == plain.data
    assert plain.model_args == {"norm": "batch"}
    other = config(feddb, "presets", "CIFAR10-4000", "FedMatch as in SemiFL's code")
    assert other.method.class_path == "methods.ablations.fedmatch.SemiFLsCopy"
    assert (other.method.init_args["batches"], other.method.init_args["helpers"]) == ("full", 0)


def test_unknown_published_values_are_said_to_be_unknown(feddb: Suite, quick: Plan) -> None:
    tables = {t.number: t for t in render(feddb, quick, feddb.published())}
    assert set(tables) == {"1", "2", "3", "4", "fashion", "presets", "released"}
    for number in "234":
        assert tables[number].frame["published"].isna().all()
        assert tables[number].frame["status"].str.endswith("published: not available to us").all()
        assert "not available to us" in tables[number].markdown
    first = tables["1"].frame
    assert not first[first["metric"] == "acc"]["published"].str.contains("not available").any()

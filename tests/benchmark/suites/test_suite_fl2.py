"""The (FL)2 suite: protocol of the tables, published values."""

from typing import Any

import pytest

from benchmark.config import RunConfig
from benchmark.report.tables import render
from benchmark.runs.states import RunState
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError
from papers import load

PRETRAIN = {"CIFAR10-10": 10, "CIFAR10-40": 10, "SVHN-40": 102, "SVHN-250": 16, "CIFAR100-100": 10, "CIFAR100-400": 10}


@pytest.fixture(scope="module")
def fl2() -> Suite:
    return load("fl2")


def config(fl2: Suite, table: str, dataset: str, method: str, scale: str = "paper", **columns: str) -> RunConfig:
    rows = [
        r
        for r in fl2.rows
        if (r.table, r.dataset, r.method) == (table, dataset, method) and columns.items() <= r.columns.items()
    ]
    return fl2.run(rows[0], scale).config


def test_every_published_value_has_a_row(fl2: Suite) -> None:
    published = {key for key in fl2.published() if not key[-1].endswith(" std")}
    rows = {row.key("acc") for row in fl2.rows}
    assert len(published) == 72 + 5 + 8
    assert published <= rows
    ours = {key[0] for key in rows - published if not key[0].startswith("pretraining")}
    assert ours == {"ablation", "fig4", "presets", "labels", "inert"}


def test_controls_and_printed_runs(fl2: Suite) -> None:
    """The paper has no lower bound: SemiFL, which (FL)2 builds on, is the control, and in Table 2 FixMatch."""
    told = {table.number: (table.control, table.published_runs) for table in fl2.tables if table.number in "123"}
    assert told == {"1": ("semifl", 3), "2": ("fixmatch", 1), "3": ("semifl", 3)}


def test_published_values(fl2: Suite) -> None:
    values = fl2.published()
    iid = (("partition", "iid"),)
    assert values["1", "CIFAR10-40", "fl2", iid, "acc"] == "81.5"
    assert values["1", "CIFAR10-40", "fl2", iid, "acc std"] == "7.4"
    assert values["2", "SVHN-40", "fixmatch", iid, "acc"] == "50.2"
    assert ("2", "SVHN-40", "fixmatch", iid, "acc std") not in values
    printed = [float(v) for k, v in values.items() if k[0] == "1" and k[2] == "fl2" and k[-1] == "acc"]
    assert sum(printed) == pytest.approx(199.0 + 228.9 + 332.8)  # by partition, added by hand


@pytest.mark.parametrize("dataset", PRETRAIN)
def test_paper_scale_is_the_protocol(fl2: Suite, dataset: str) -> None:
    name, labels = dataset.split("-")
    for method in ("fl2", "semifl"):
        run = config(fl2, "1", dataset, method, partition="dir0.1")
        data, args = run.data.init_args, run.method.init_args
        assert (run.rounds, run.roster, run.report) == (800, {"participants": 10}, "last")
        assert (data["scenario"], data["num_clients"], data["num_labels"]) == ("server", 100, int(labels))
        assert (data["partition"], data["beta"], data["min_size"]) == ("dirichlet", 0.1, 10)
        assert data["partition_seed"] is None
        assert (data["pipeline"], data["flip"]) == ("randaugment_uniform", 0.5)
        assert run.model == ("wrn28_8" if name == "CIFAR100" else "wrn28_2")
        assert (args["lr"], args["lr_schedule"], args["server_momentum"]) == (0.03, "cosine", 0.5)
        assert args["server_pretrain"] == (PRETRAIN[dataset] if method == "fl2" else 0)
        if method == "fl2":
            assert args["rho"] == (1.0 if name == "CIFAR100" else 0.1)
    constants = {"CIFAR10": (0.485, 0.225), "SVHN": (0.438, 0.1744), "CIFAR100": (129.3 / 255, 70.4 / 255)}[name]
    assert (data["mean"][0], data["std"][2]) == pytest.approx(constants, abs=1e-6)
    assert fl2.scale("paper")["seeds"] == [0, 1, 2]


def test_the_cell_that_is_printed_twice_is_judged_by_its_mean(fl2: Suite) -> None:
    """Table 2 prints a single run of what Table 1 prints the mean of: the same runs of ours, one verdict."""
    (row,) = [row for row in fl2.rows if row.judged_by]
    assert (row.name, row.judged_by) == ("2/SVHN-40/fl2", "1")
    assert (row.columns, fl2.run(row, "paper").config.seed) == ({"partition": "iid"}, 0)
    plan = fl2.plan("paper")
    other = next(r for r in fl2.rows if r.name == "1/SVHN-40/fl2" and r.columns == row.columns)
    assert plan.of_row[row.full_name] == plan.of_row[other.full_name]
    environment = {"cpu": "x", "cores": 1, "threads": 1}
    runs = {}
    for key, run in plan.runs.items():
        value = (55.0 if run.config.method.name == "fixmatch" else 76.9) + run.config.seed - 1
        record = {name: {"acc": value} for name in ("best", "final", "last_k_mean")}
        runs[key] = RunState("complete", record | {"environment": environment, "code_version": "0"})
    plan.found = runs
    frames = {table.number: table.frame for table in render(fl2, plan, fl2.published())}
    first = frames["1"].query("dataset == 'SVHN-40' and method == 'fl2' and partition == 'iid'").iloc[0]
    second = frames["2"].query("method == 'fl2'").iloc[0]
    assert (first["published"], first["delta"], first["status"]) == (
        "75.3",
        1.6,
        "level only",
    )  # all are alike, SemiFL too
    assert (second["published"], second["delta"]) == ("73.2", 3.7)  # to what stands beside it; judged by the other
    assert second["status"] == "reproduced, by table 1: 75.3 ± 2.4"
    assert first["prediction"] == second["prediction"] == pytest.approx(4.3027 * (2 / 3) ** 0.5, abs=1e-4)
    without = {key: value for key, value in fl2.published().items() if key[0] != "1"}
    with pytest.raises(ConfigError, match="2/SVHN-40/fl2: judged_by: there is no acc of 1/SVHN-40/fl2"):
        plan.found = runs
        render(fl2, plan, without)


def test_ablation_rows(fl2: Suite) -> None:
    expected: dict[str, dict[str, Any]] = {
        "sacr_fixmatch": {"selection": "fixed", "w_cs": 1.0, "aggregation": "uniform"},
        "cat": {"selection": "adaptive", "w_cs": 0.0, "aggregation": "uniform"},
        "cat_sacr": {"selection": "adaptive", "w_cs": 1.0, "aggregation": "uniform"},
        "fl2": {"selection": "adaptive", "w_cs": 1.0, "aggregation": "lsaa"},
    }
    for method, wanted in expected.items():
        args = config(fl2, "2", "SVHN-40", method).method.init_args
        assert {k: args[k] for k in wanted} == wanted
        assert args["server_pretrain"] == 102
    assert config(fl2, "2", "SVHN-40", "fixmatch").method.init_args["server_pretrain"] == 102


def test_presets(fl2: Suite) -> None:
    released = config(fl2, "presets", "SVHN-40", "released").method.init_args
    assert (released["lr_schedule"], released["server_pretrain"]) == ("constant", 102)
    assert config(fl2, "presets", "SVHN-40", "no_pretrain").method.init_args["server_pretrain"] == 0
    assert config(fl2, "presets", "SVHN-40", "semifl", server_pretrain="102").method.init_args["server_pretrain"] == 102
    own = config(fl2, "presets", "SVHN-40", "semifl_repo")
    assert (own.data.init_args["pipeline"], own.data.init_args["flip"]) == ("randaugment_maximal", 0.0)
    assert (own.method.init_args["sbn_batch"], own.method.init_args["sbn_order"]) == (250, "dataset")


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_every_cell_has_a_row_with_and_one_without_pretraining(fl2: Suite, scale: str) -> None:
    """(FL)2 alone was released with it: so each of its cells needs (FL)2 without, and SemiFL with the same."""
    controls = [fl2.run(row, scale).config for row in fl2.rows if row.table.startswith("pretraining")]
    cells = [row for row in fl2.rows if row.table in "13" and row.method in ("fl2", "semifl")]
    assert len(cells) == 2 * (18 + 4)
    for row in cells:
        main = fl2.run(row, scale).config
        calls = PRETRAIN.get(row.dataset, 10)
        assert main.method.init_args["server_pretrain"] == (calls if row.method == "fl2" else 0)
        alike = [c for c in controls if (c.method.name, c.data) == (main.method.name, main.data)]
        assert {c.method.init_args["server_pretrain"] for c in alike} == {0, calls}, row.name
        assert main in alike


def test_quick_runs_every_row_on_digits(fl2: Suite) -> None:
    plan = fl2.plan("quick")
    assert {run.config.data.name for run in plan.runs.values()} == {"digits"}
    assert {run.config.seed for run in plan.runs.values()} == {0, 1, 2}
    assert not [row.name for row in fl2.rows if row.pending]
    assert all(plan.run(row, 0).config.rounds < 20 for row in fl2.rows)


def test_ag_news_trains_a_linear_classifier_for_20_rounds(fl2: Suite) -> None:
    for scale, encoder, strong in (("paper", "bert", "back_translation"), ("lite", "auto", "auto")):
        for method in ("fl2", "semifl"):
            run = config(fl2, "3", "AGNews-20", method, scale, partition="dir0.3")
            data, args = run.data.init_args, run.method.init_args
            assert (run.data.name, run.model, run.rounds, run.roster["participants"]) == ("ag_news", "linear", 20, 10)
            assert (data["num_labels"], data["pipeline"], data["beta"]) == (20, "feature_versions", 0.3)
            assert (data["encoder"], data["strong"], data["texts_per_class"]) == (encoder, strong, 12_500)
            assert (args["local_epochs"], args["server_epochs"], args["lr"]) == (5, 5, 0.03)
            if method == "semifl":
                assert (args["mix_weight"], args["batch_size"], args["server_pretrain"]) == (0.0, 10, 0)
            else:
                assert (args["rho"], args["batch_size"], args["server_pretrain"]) == (0.1, 32, 10)


@pytest.mark.parametrize("scale", ["paper", "small", "quick"])
def test_fedmatch_and_fedcon_train_as_the_rows_beside_them(fl2: Suite, scale: str) -> None:
    """Losses and rules of their own; network, schedule and participation are the table's."""
    beside = config(fl2, "1", "CIFAR10-40", "fl2", scale, partition="iid")
    for method in ("fedmatch", "fedcon"):
        run = config(fl2, "1", "CIFAR10-40", method, scale, partition="iid")
        args, theirs = run.method.init_args, beside.method.init_args
        assert (run.model, run.rounds, run.roster) == (beside.model, beside.rounds, beside.roster)
        assert run.data == beside.data
        if scale != "quick":
            mine = ["lr", "lr_schedule", "momentum", "nesterov", "weight_decay", "batch_size", "local_epochs"]
            mine += ["server_batch_size", "server_epochs"]
            assert {name: args[name] for name in mine} == {name: theirs[name] for name in mine}
        if scale == "quick":
            assert (args["local_epochs"], args["server_epochs"]) == (theirs["local_epochs"], theirs["server_epochs"])
        running = method == "fedcon" and scale != "quick"  # the quick network has no norms
        assert run.model_args.get("norm") == ("running" if running else None)
    inert = config(fl2, "inert", "CIFAR10-40", "fedmatch_inert", scale)
    assert (inert.method.class_path, inert.method.init_args["lambda_s"]) == (
        "methods.ablations.fedmatch.InertClients",
        1.0,
    )
    labels = config(fl2, "inert", "CIFAR10-40", "server_only", scale)
    assert inert.method.init_args["clip_norm"] == labels.method.init_args["clip_norm"] == 1.0
    released = config(fl2, "inert", "CIFAR10-40", "fedmatch_repo", scale)
    assert released.data.init_args["pipeline"] == "randaugment_grid"
    args = released.method.init_args
    rate = 0.005 if scale == "quick" else 1e-3
    assert (args["lr"], args["momentum"], args["batches"], args["lambda_l1"]) == (rate, 0.0, "in_order", 1e-5)
    repo = config(fl2, "inert", "CIFAR10-40", "fedcon_repo", scale).method
    assert repo.class_path == "methods.ablations.fedcon.ReleasedFedCon"
    assert (repo.init_args["lr"], repo.init_args["weight_decay"], repo.init_args["server_lr"]) == (
        3 / 256,
        1.5e-6,
        0.01,
    )
    assert repo.init_args["projector_width"] == (256 if scale == "quick" else 12288)
    if scale != "quick":
        assert (released.data.init_args["mean"], released.data.init_args["std"]) == ([0.0], [1.0])

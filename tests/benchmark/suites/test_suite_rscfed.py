"""The RSCFed suite: a row for every published value, the paper's protocol, and its controls."""

import csv
from collections import Counter

import pytest

from benchmark.config import from_yaml, to_yaml
from benchmark.suites import suite
from papers import load

PUBLISHED = suite.PUBLISHED / "rscfed.csv"
SCALES = ("quick", "lite", "paper")


@pytest.fixture(scope="module")
def rscfed():
    return load("rscfed")


@pytest.fixture(scope="module")
def plans(rscfed):
    return {scale: rscfed.plan(scale, seeds=[1337]) for scale in SCALES}


@pytest.fixture(scope="module")
def published():
    with open(PUBLISHED, newline="") as file:
        return list(csv.DictReader(file))


def test_has_a_row_for_every_published_value_and_no_other(rscfed):
    printed = [table for table in rscfed.tables if table.number not in ("controls", "presets", "same_client")]
    keys = [row.key(metric) for table in printed for row in table.rows for metric in table.metrics]
    assert len(keys) == 156 and set(keys) == set(rscfed.published())


@pytest.mark.parametrize("scale", SCALES)
def test_expands_to_forty_distinct_runs_and_eight_controls_per_seed(plans, scale):
    plan = plans[scale]
    assert len(plan.runs) == 48
    for run in plan.runs.values():
        assert from_yaml(to_yaml(run.config)) == run.config
    labels = Counter(cell.split("/")[1] for run in plan.runs.values() for cell in run.cells[:1])
    assert labels == {"SVHN": 29, "CIFAR-100": 13, "ISIC2018": 6}


def test_the_control_of_fedirm_has_the_weight_of_its_original_and_a_record(rscfed):
    """Table 1 trains with weight 1; the record that was made with 15 is that of the control row."""
    plan = rscfed.plan("paper")
    runs = {row.name: plan.run(row, 1337) for row in rscfed.rows if row.minus is None and row.dataset == "CIFAR-100"}
    table, control = runs["1/CIFAR-100/fedirm"], runs["controls/CIFAR-100/fedirm_15"]
    assert runs["controls/CIFAR-100/fedirm"] is table
    args = table.config.method.init_args
    assert args["loss_weight"] == 1 and control.config.method.init_args == {**args, "loss_weight": 15}
    assert plan.found[control.id].state == "complete"
    assert plan.found[table.id].state != "outdated"


def test_paper_scale_is_the_protocol(rscfed, plans):
    plan = plans["paper"]
    runs = {(row.name, tuple(row.columns.values())): plan.run(row, 1337).config for row in rscfed.rows if not row.minus}
    svhn = runs["1/SVHN/rscfed", ("1", "9", "yes")]
    wanted = {
        "subsets": 3, "subset_size": 5, "dma": True, "labelled_multiplier": 6.0,
        "labelled_weight_mode": "once", "dma_beta_labelled": 100.0, "dma_beta_unlabelled": 10000.0,
        "dma_distance": "sum_tensor", "reset_momentum": False, "lambda_u": 0.02,
        "warmup_rounds": 7, "ema_ramp": True, "ema_decay": 0.999,
        "temperature": 0.5, "lr": 0.03, "lr_unlabelled": 0.021, "batch_size": 64, "momentum": 0.9,
        "weight_decay": 5e-4, "clip_norm": 5.0, "local_epochs": 1,
    }  # fmt: skip
    assert {name: svhn.method.init_args[name] for name in wanted} == wanted
    data = {"beta": 0.75, "partition_seed": 1337, "num_clients": 10, "labelled_clients": 1, "min_size": 10}
    assert {name: svhn.data.init_args[name] for name in data} == data
    assert (svhn.rounds, svhn.last_k, svhn.eval_every, svhn.report, svhn.model) == (
        1000,
        50,
        1,
        "best",
        "small_cnn",
    )
    isic = runs["1/ISIC2018/rscfed", ("1", "9", "yes")]
    wanted = {
        "labelled_multiplier": 200.0, "dma_beta_labelled": 0.01, "dma_beta_unlabelled": 0.01, "lr": 0.002,
        "lr_unlabelled": 0.001, "batch_size": 12,
    }  # fmt: skip
    assert {name: isic.method.init_args[name] for name in wanted} == wanted
    assert (isic.rounds, isic.model, isic.data.init_args["partition_seed"]) == (800, "resnet18_cifar", 10087)
    upper, lower = runs["1/SVHN/fedavg_upper", ("10", "0")], runs["1/SVHN/fedavg_lower", ("1", "0")]
    assert upper.data.init_args | {"labelled_clients": 1} == lower.data.init_args == svhn.data.init_args
    assert runs["1/CIFAR-100/rscfed", ("1", "9", "yes")].data.init_args["beta"] == 0.8
    two = runs["3/SVHN/rscfed", ("2", "8")]
    assert (two.method.init_args["labelled_multiplier"], two.method.init_args["dma_beta_unlabelled"]) == (
        2,
        7000,
    )
    assert two.data.init_args | {"labelled_clients": 1} == svhn.data.init_args
    many = runs["4/SVHN/rscfed", ("1", "49")]
    assert many.data.init_args == svhn.data.init_args | {"num_clients": 50}
    part = runs["5/SVHN/rscfed", ("0.10", "no")]
    assert (part.data.init_args["scenario"], part.data.init_args["label_fraction"]) == ("all_clients", 0.1)
    assert part.method.init_args["labelled_multiplier"] == 1 and part.method.init_args["lr_unlabelled"] == 0.03
    for row, (subsets, size) in {"8": (2, 4), "9": (3, 3), "10": (2, 5), "15": (3, 5)}.items():
        args = runs["6/SVHN/rscfed", (row, f"{int(row) / 10}")].method.init_args
        assert (args["subsets"], args["subset_size"]) == (subsets, size) and subsets * size == int(row)
    for (name, columns), config in runs.items():
        if name == "7/SVHN/rscfed":
            args = config.method.init_args
            assert (str(args["subsets"]), str(args["subset_size"])) == columns


def test_conflicts_of_paper_and_code_have_control_rows(rscfed, plans):
    """Each differs from its row without it in what the label says, and an ablation takes its method's options."""
    for scale in SCALES:
        runs = {row.method: plans[scale].run(row, 1337).config for row in rscfed.rows if row.table == "presets"}
        both = {"lambda_u": 1.0, "ema_ramp": False}
        consensus = {"labelled_weight_mode": "share:0.5", "dma_beta_labelled": 10_000.0, "dma_distance": "global_l2"}
        for label, plain, changed in (
            ("fed_consist_as_written", "fed_consist", both),
            ("rscfed_as_written", "rscfed", both | consensus),
            ("rscfed_squared", "rscfed", {"labelled_weight_mode": "squared"}),
            ("rscfed_forced", "rscfed", {}),
            ("fedirm_two_views", "fedirm", {}),
        ):
            base = runs[plain]
            assert runs[label].method.init_args == base.method.init_args | changed
            assert (runs[label].method.class_path == base.method.class_path) is bool(changed)
            assert (runs[label].model_args, runs[label].data) == (base.model_args, base.data)
        runs |= {
            f"{row.method} of 25": plans[scale].run(row, 1337).config
            for row in rscfed.rows
            if row.table == "same_client"
        }
        for label, plain, changed in (
            ("rscfed_random80", "rscfed", {"split": "random80"}),
            ("rscfed_same_client of 25", "rscfed of 25", {"labelled_from": 10}),
        ):
            assert runs[label].data.init_args == runs[plain].data.init_args | changed
            assert runs[label].method == runs[plain].method


def test_quick_needs_no_download_and_keeps_the_clients(rscfed, plans):
    quick, paper = plans["quick"], plans["paper"]
    for row in rscfed.rows:
        if row.minus is None:
            small, real = quick.run(row, 1337).config, paper.run(row, 1337).config
            assert small.data.name == "digits" and small.model == "mlp" and small.rounds <= 50
            stand_in = {"side": 16, "zoom": 18, "flip": 0.0}  # of the images alone
            if row.dataset == "ISIC2018":
                stand_in["beta"] = 0.5  # a more uneven partition, which leaves room between the bounds
            assert small.data.init_args == real.data.init_args | stand_in
            assert not rscfed.compares("quick") and rscfed.compares("paper")


def test_published_values(published):
    assert Counter(row["table"] for row in published) == dict(zip("1234567", (60, 18, 16, 36, 8, 10, 8), strict=True))
    for row in published:
        value = float(row["value"])
        low, high = (0, 5) if row["method"] == "improvement" else (10, 100)
        assert low < value < high, row
        assert row["metric"] in ("acc", "auc", "precision", "recall")
        assert len(row["value"].partition(".")[2]) in (1, 2)
        assert row["dataset"] == "SVHN" or row["table"] in "12"


def test_published_improvements_are_the_differences_of_their_rows(published):
    table = {(r["method"], r["unlabelled"], r["metric"]): float(r["value"]) for r in published if r["table"] == "4"}
    gains = [key for key in table if key[0] == "improvement"]
    assert len(gains) == 12
    for _, unlabelled, metric in gains:
        gain = table["rscfed", unlabelled, metric] - table["fed_consist", unlabelled, metric]
        assert gain == pytest.approx(table["improvement", unlabelled, metric], abs=1e-6)


def test_published_values_repeat_consistently_between_tables(published):
    """The standard setting is printed in Tables 1, 2, 4, 6 and 7, sometimes with one decimal."""
    standard = {}
    for row in published:
        again = (row["table"] == "4" and row["unlabelled"] == "9") or row["comm_cost"] == "1.5" or row["M"] == "3"
        if row["method"] == "rscfed" and (row["table"] in "12" or again):
            standard.setdefault((row["dataset"], row["metric"]), []).append(float(row["value"]))
    assert len(standard["SVHN", "acc"]) == 5
    assert all(max(values) - min(values) < 0.0501 for values in standard.values())

"""The CBAFed suite: a row for every published value, the paper's protocol, and the presets of its labels."""

from typing import Any

import pytest

from benchmark.config import RunConfig, from_yaml, to_yaml
from benchmark.suites.suite import Suite
from papers import load


@pytest.fixture(scope="module")
def cbafed() -> Suite:
    return load("cbafed")


@pytest.fixture(scope="module")
def paper(cbafed: Suite) -> dict[str, RunConfig]:
    """Configurations at the paper's scale by ``table/dataset/method``."""
    plan = cbafed.plan("paper", seeds=[1337])
    return {row.name: plan.run(row, 1337).config for row in cbafed.rows}


def arguments(config: RunConfig, *names: str) -> dict[str, Any]:
    return {name: config.method.init_args[name] for name in names}


def test_a_row_for_every_published_value_and_no_other(cbafed: Suite) -> None:
    tables = [table for table in cbafed.tables if table.number not in ("tail", "figure3", "presets")]
    keys = [row.key(metric) for table in tables for row in table.rows for metric in table.metrics]
    assert [len(table.rows) for table in tables] == [40, 8, 8, 12]
    assert len(keys) == 68 and set(keys) == set(cbafed.published())


@pytest.mark.parametrize(("scale", "runs"), [("quick", 44), ("lite", 76), ("paper", 76)])
def test_distinct_runs(cbafed: Suite, scale: str, runs: int) -> None:
    """Table 3 shares the upper bound with Table 1, Table 4 its last rows; stand-in data share more."""
    plan = cbafed.plan(scale, seeds=[1])
    assert len(plan.runs) == runs
    for run in plan.runs.values():
        assert from_yaml(to_yaml(run.config)) == run.config
        assert run.config.data.name == "digits" or scale != "quick"
        assert run.config.model == "mlp" or scale != "quick"


def test_constants_by_data_set(paper: dict[str, RunConfig]) -> None:
    """Thresholds, rates, factor, schedule: Section 4.1 of the sheet."""
    names = ("cba_tau_h", "lr", "lr_unlabelled", "batch_size", "labelled_weight_mode", "warmup_rounds")
    found = {
        d: (*arguments(paper[f"1/{d}/cbafed"], *names).values(), paper[f"1/{d}/cbafed"].rounds)
        for d in ("SVHN", "CIFAR-10", "CIFAR-100", "Fashion-MNIST", "ISIC2018")
    }
    assert found == {
        "SVHN": (0.9, 0.03, 0.02, 64, "plain", 501, 1002),
        "CIFAR-10": (0.95, 0.03, 0.02, 64, "plain", 501, 1002),
        "CIFAR-100": (0.95, 0.03, 0.02, 64, "plain", 1001, 2002),
        "Fashion-MNIST": (0.95, 0.03, 0.02, 64, "plain", 501, 1002),
        "ISIC2018": (0.9, 0.002, 0.001, 12, "multiplier:10", 501, 1002),
    }
    wanted = {
        "cba_tau": 0.84, "pl_threshold": None,
        "tail_rule": "share", "tail_beta": 0.3, "res_client_alpha": 0.8, "res_server_alpha": 0.5, "res_skip": 5,
        "res_client_reference": "first", "agg_counts": "selected",
        "labelled_epochs": 11, "local_epochs": 1, "min_batch": 2,
        "reset_momentum": False, "momentum": 0.9, "weight_decay": 5e-4, "clip_norm": 5.0, "nesterov": False,
    }  # fmt: skip
    svhn = paper["1/SVHN/cbafed"]
    assert arguments(svhn, *wanted) == wanted
    assert (svhn.model, svhn.report, svhn.last_k, svhn.eval_every) == ("resnet18", "best", 10, 1)
    data = {
        "beta": 0.75,
        "labelled_histogram": None,
        "partition_seed": 1337,
        "num_clients": 10,
        "labelled_clients": 1,
        "pipeline": "zoom_crop_flip",
        "min_size": 10,
    }
    assert {name: svhn.data.init_args[name] for name in data} == data
    assert paper["1/CIFAR-10/cbafed"].data.init_args["beta"] == 0.8
    assert paper["1/ISIC2018/cbafed"].data.init_args["zoom"] == 240


def test_baselines(paper: dict[str, RunConfig]) -> None:
    """Bounds, the two Fed-Consists, and the rows of other papers as this one ran them."""
    lower, plus, upper = (paper[f"1/CIFAR-100/fedavg_{kind}"] for kind in ("lower", "plus", "upper"))
    assert (lower.method.name, lower.rounds) == ("fedavg", 1001)
    assert plus.method.init_args == lower.method.init_args | {"res_client_alpha": 0.8}
    assert lower.method.init_args["res_client_alpha"] == 0.0
    assert upper.data.init_args == lower.data.init_args | {"labelled_clients": 10}
    common = {
        "pl_threshold": 0.9, "tail_beta": 0.0, "res_client_alpha": 0.0, "res_server_alpha": 0.0,
        "labelled_epochs": 1, "agg_counts": "size", "local_epochs": 1,
    }  # fmt: skip
    for dataset in ("SVHN", "ISIC2018"):
        fixed, batch = (paper[f"1/{dataset}/{label}"] for label in ("fedconsist_plus", "fedconsist"))
        assert arguments(fixed, *common) == arguments(batch, *common) == common
        assert batch.method.init_args == fixed.method.init_args | {"labelled_weight_mode": "share:0.5"}
        assert batch.method.name == "methods.ablations.cbafed.BatchByBatch"
        assert fixed.method.init_args["labelled_weight_mode"] == "plain"
        assert paper[f"1/{dataset}/fedirm"].method.init_args["labelled_weight_mode"] == "share:0.5"
    for label in ("fedirm", "rscfed"):
        assert paper[f"1/CIFAR-10/{label}"].rounds == 1002
        assert arguments(paper[f"1/CIFAR-10/{label}"], "lr", "lr_unlabelled", "min_batch") == {
            "lr": 0.03,
            "lr_unlabelled": 0.02,
            "min_batch": 2,
        }


def test_warm_up_of_this_paper_and_of_the_others(paper: dict[str, RunConfig]) -> None:
    """CBAFed's stage belongs to what labels with its model; the mean teachers keep their own seven rounds."""
    for dataset, long in (("SVHN", 501), ("CIFAR-10", 501), ("CIFAR-100", 1001), ("Fashion-MNIST", 501)):
        runs = {label: paper[f"1/{dataset}/{label}"] for label in ("fedirm", "rscfed", "fedconsist", "cbafed")}
        found = {label: run.method.init_args["warmup_rounds"] for label, run in runs.items()}
        assert found == {"fedirm": 7, "rscfed": 7, "fedconsist": long, "cbafed": long}
        assert runs["fedirm"].method.init_args["ramp_offset"] == 7
        assert {run.rounds for run in runs.values()} == {2 * long}


def test_other_settings(paper: dict[str, RunConfig]) -> None:
    """ViT-Tiny at 224 pixels; two labelled clients; the ablation adds one part after the other."""
    vit = paper["2/SVHN/cbafed"]
    assert (vit.model, vit.data.init_args["side"], vit.data.init_args["zoom"]) == ("vit_tiny", 224, 256)
    assert vit.method == paper["1/SVHN/cbafed"].method
    assert paper["3/CIFAR-10/cbafed"].data.init_args["labelled_clients"] == 2
    assert paper["3/CIFAR-10/fedavg_upper"] == paper["1/CIFAR-10/fedavg_upper"]
    steps = [paper[f"4/CIFAR-10/cbafed_fixedpl{more}"] for more in ("", "_cba", "_cba_dd", "_cba_dd_res")]
    changed: list[dict[str, Any]] = [
        {"pl_threshold": None},
        {"tail_beta": 0.3},
        {"res_client_alpha": 0.8, "res_server_alpha": 0.5},
    ]
    for before, after, change in zip(steps, steps[1:], changed, strict=False):
        assert after.method.init_args == before.method.init_args | change != before.method.init_args
    assert steps[3] == paper["1/CIFAR-10/cbafed"]


def test_strategies_of_figure_3(paper: dict[str, RunConfig]) -> None:
    """Batch by batch or fixed or rebuilt, with 1 or 5 local epochs; 200 rounds after the warm-up."""
    found = {
        name.split("/")[2]: (
            config.method.name.rpartition(".")[2],
            *arguments(config, "local_epochs", "labelled_epochs").values(),
            config.rounds,
        )
        for name, config in paper.items()
        if name.startswith("figure3")
    }
    assert found == {
        "batch_1_epoch": ("BatchByBatch", 1, 1, 701),
        "batch_5_epochs": ("BatchByBatch", 5, 1, 701),
        "fixed_1_epoch": ("cbafed", 1, 1, 701),
        "fixed_5_epochs": ("cbafed", 5, 1, 701),
        "rebuilt_5_epochs": ("RebuiltSets", 5, 1, 701),
    }


def test_conflicts_of_paper_and_code_have_control_rows(cbafed: Suite, paper: dict[str, RunConfig]) -> None:
    """Eqs. 1 and 16 as written, the image itself labelled, the warm-up at the clients, any two clients with the labels,
    and ten classes that are spread.
    """
    runs = {label: paper[f"presets/CIFAR-100/{label}"] for label in ("cbafed", "as_written", "plain_images")}
    plain = runs["cbafed"]
    assert plain.data.init_args["labelled_clients"] == 2
    written = {"res_client_reference": "initial", "tail_rule": "paper_scaled"}
    assert runs["as_written"].method.init_args == plain.method.init_args | written
    assert runs["plain_images"].method.init_args == plain.method.init_args
    for label, changed in (("any_clients", {"labelled_pick": "random"}), ("ten_classes", {"split_classes": 10})):
        run = paper[f"presets/CIFAR-100/{label}"]
        assert run.data.init_args == plain.data.init_args | changed and run.method == plain.method
    for scale, rounds, epochs in (("paper", 2002, 1001), ("lite", 302, 231), ("small", 302, 231), ("quick", 22, 66)):
        plan = cbafed.plan(scale, seeds=[1])
        kept = [row for row in cbafed.rows if row.table == "presets" and row.full_name in plan.of_row]
        found = {row.method: plan.run(row, 1).config for row in kept}
        assert ("ten_classes" in found) is (scale != "quick")  # the digits have ten classes
        local, args = found["warm_up_at_clients"], found["warm_up_at_clients"].method.init_args
        assert found["cbafed"].rounds == rounds
        assert args["warmup_rounds"] * args["labelled_epochs"] == epochs
        assert args["warmup_rounds"] % 5 == 1 and (local.rounds - args["warmup_rounds"]) % 5 == 1


def test_reduced_schedules_keep_their_form(cbafed: Suite) -> None:
    """Warm-up and second stage end on a residual connection: 1 + 5 k rounds each."""
    for scale in ("quick", "lite", "paper"):
        for run in cbafed.plan(scale, seeds=[1]).runs.values():
            warm = run.config.method.init_args.get("warmup_rounds", run.config.rounds)
            if run.config.method.name in ("cbafed", "fedavg") and run.config.rounds != 701:
                assert warm % 5 == 1
                assert run.config.method.name == "fedavg" or (run.config.rounds - warm) % 5 == 1

"""The tables of FedDure: every published value has a row, every row a run, every run its constants."""

from typing import Any

import pytest

from benchmark.config import RunConfig
from benchmark.suites.plan import Row
from benchmark.suites.suite import Suite
from papers import load


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load("feddure")


def find(suite: Suite, table: str, dataset: str, method: str, partition: str) -> Row:
    wanted = (table, dataset, method, {"partition": partition})
    (row,) = [r for r in suite.rows if (r.table, r.dataset, r.method, r.columns) == wanted]
    return row


def config(suite: Suite, table: str, dataset: str, method: str, partition: str = "iid_dir") -> RunConfig:
    return suite.run(find(suite, table, dataset, method, partition), "paper").config


def test_every_published_value_has_a_row(suite: Suite) -> None:
    published = {key: value for key, value in suite.published().items() if not key[-1].endswith(" std")}
    assert len(published) == 97
    assert set(published) <= {row.key("acc") for row in suite.rows}
    assert published[find(suite, "1", "cinic10", "FedDure", "dir_dir").key("acc")] == "46.43"
    assert published[find(suite, "2", "cifar10", "FedAvg+FixMatch (Baseline)", "iid_dir").key("acc")] == "46.67"
    spread = find(suite, "1", "cifar10", "FedProx+FixMatch", "iid_dir").key("acc std")
    assert suite.published()[spread] == "0.71"


@pytest.mark.parametrize("scale", ["paper", "lite", "quick"])
def test_all_rows_run(suite: Suite, scale: str) -> None:
    plan = suite.plan(scale)
    assert not [r.name for r in suite.rows if r.pending]
    gone = {r.method for r in suite.rows if r.full_name not in plan.of_row}
    assert not gone
    assert {r.config.report for r in plan.runs.values()} == {"last"}
    if scale == "quick":
        assert {r.config.data.name for r in plan.runs.values()} == {"digits"}
    if scale == "paper":
        assert plan.seeds == (0, 1, 2)
        assert len(plan.runs) == 321 + 3 * (9 + 4 + 12 + 2)


def test_protocol(suite: Suite) -> None:
    run = config(suite, "1", "cifar10", "FedDure")
    args, data = run.method.init_args, run.data.init_args
    assert (run.model, run.rounds, run.roster) == ("resnet9", 200, {"participants": 5, "rule": "numpy_round"})
    assert (data["labelled_partition"], data["partition"], data["beta"], data["min_size"]) == (
        "iid", "dirichlet", 0.5, 10,
    )  # fmt: skip
    assert (data["num_clients"], data["num_labels"], data["partition_seed"]) == (100, 5000, None)
    assert (args["batch_size"], args["steps_per_visit"], args["reset_momentum"]) == (10, 5, True)
    clothes = config(suite, "1", "fashion_mnist", "FedDure").data.init_args
    assert (clothes["border"], clothes["mean"], clothes["std"]) == (2, [0.219], [0.3318])
    assert config(suite, "1", "cinic10", "FedDure").eval_every == 5
    for partition, kinds in (("iid_iid", ("iid", "iid")), ("dir_dir", ("dirichlet", "dirichlet"))):
        drawn = config(suite, "1", "cinic10", "FedAvg*", partition).data.init_args
        assert (drawn["labelled_partition"], drawn["partition"]) == kinds


ABLATIONS = "methods.ablations.feddure."
PLAIN = "methods.ablations.local_ssl.WithoutRegulators"
RELEASE: dict[str, Any] = {
    "lr": 6e-4, "creg_lr": 6e-4, "threshold": 0.6, "unsup_targets": "soft", "unsup_weight": 8.0, "unsup_ramp": 20,
    "supervised_steps": 5, "feedback_weight": -1.0, "warmup_steps": 10, "creg_wait": 2,
}  # fmt: skip
FIXMATCH: dict[str, Any] = {"unsup_targets": "hard", "threshold": 0.6}
OFF: dict[str, Any] = {"unsup_targets": "hard", "threshold": 0.0, "unsup_ramp": 0}
CONTROLS: list[tuple[str, str, dict[str, Any]]] = [
    ("(a) FedDure", "feddure", {"supervised_steps": 0, "feedback_weight": 1.0}),
    ("(b) FedDure, 5 supervised steps", "feddure", {"supervised_steps": 5}),
    ("(c) release", ABLATIONS + "Released", RELEASE),
    ("(d) release, no supervised steps", ABLATIONS + "Released", {**RELEASE, "supervised_steps": 0}),
    ("(e) release, d = 0", ABLATIONS + "Released", {**RELEASE, "feedback_weight": 0.0}),
    (
        "(f) FedAvg+FixMatch, 5 supervised steps, ramp",
        "methods.ablations.local_ssl.SupervisedSteps",
        {**FIXMATCH, "supervised_steps": 5, "unsup_weight": 8.0, "unsup_ramp": 20},
    ),
    *(
        (
            label,
            "methods.ablations.local_ssl.WithoutRegulators",
            {**OFF, "supervised_steps": steps, "unsup_weight": weight},
        )
        for label, steps, weight in (
            ("(h) recipe of (a), no regulator", 0, 1.0),
            ("(i) recipe of (b), no regulator", 5, 1.0),
            ("(j) recipe of (a), weight 0.5, no regulator", 0, 0.5),
            ("(k) recipe of (b), weight 0.5, no regulator", 5, 0.5),
        )
    ),
    ("(g) FedAvg*, 10 steps", "local_ssl", {"unsup_weight": 0.0, "steps_per_visit": 10}),
]


@pytest.mark.parametrize(("label", "method", "args"), CONTROLS, ids=lambda v: v[:3] if isinstance(v, str) else "")
def test_controls(suite: Suite, label: str, method: str, args: dict[str, Any]) -> None:
    for partition in ("iid_dir", "dir_dir"):
        run = config(suite, "controls", "cifar10", label, partition)
        assert run.method.name == method
        assert {name: run.method.init_args[name] for name in args} == args


def test_rows_that_are_one_run(suite: Suite) -> None:
    """Baseline, controls (a) and (c) cost nothing beyond the main table and the release table."""
    plan = suite.plan("paper")
    same = [
        (("2", "FedAvg+FixMatch (Baseline)"), ("1", "FedAvg+FixMatch")),
        (("controls", "(a) FedDure"), ("1", "FedDure")),
        (("controls", "(c) release"), ("release", "FedDure (release)")),
    ]
    for pair in same:
        ids = [plan.of_row[find(suite, t, "cifar10", m, "iid_dir").full_name][0] for t, m in pair]
        assert ids[0] == ids[1]
    assert len({plan.of_row[r.full_name][0] for r in suite.rows}) == 107 + 9 + 4 + 12 + 2


def test_fedmatch_has_a_recipe_of_its_own(suite: Suite) -> None:
    """Its network without norms, pixels over 255, plain images; or the optimiser and network of the table."""
    own = config(suite, "1", "cifar10", "FedMatch")
    assert (own.model, own.method.class_path) == ("resnet9_plain", "methods.ablations.fedmatch.OwnEntriesKept")
    args = own.method.init_args
    assert (args["lr"], args["momentum"], args["batches"], args["delta"]) == (1e-3, 0.0, "in_order", 5e-5)
    data = own.data.init_args
    assert (data["pipeline"], data["mean"], data["std"]) == ("randaugment_grid", [0.0], [1.0])
    clothes = config(suite, "1", "fashion_mnist", "FedMatch").data.init_args
    assert (clothes["border"], clothes["mean"], clothes["std"]) == (2, [0.0], [1.0])
    table = config(suite, "fedmatch", "cifar10", "FedMatch (FedDure's recipe)")
    assert (table.model, table.method.class_path) == ("resnet9", "methods.ablations.fedmatch.FedDuresOptimiser")
    assert table.method.init_args == {**args, "lr": 5e-4}
    assert table.data == config(suite, "1", "cifar10", "FedDure").data


def test_the_released_constants_for_cinic10(suite: Suite) -> None:
    args = config(suite, "release", "cinic10_release", "FedDure (release)").method.init_args
    names = ("lr", "creg_lr", "supervised_steps", "steps_per_visit", "warmup_steps", "creg_wait")
    assert [args[name] for name in names] == [5e-4, 5e-4, 100, 10, 100, 0]
    for dataset in ("cifar10", "fashion_mnist"):
        others = config(suite, "release", dataset, "FedDure (release)").method.init_args
        assert [others[name] for name in names] == [6e-4, 6e-4, 5, 5, 10, 2]


def test_the_rate_of_creg_at_scale_quick(suite: Suite) -> None:
    """It is the local model's there, in every row with a C-reg."""
    quick = [run.config.method.init_args for run in suite.plan("quick").runs.values()]
    assert {(args["lr"], args["creg_lr"]) for args in quick if "creg_lr" in args} == {(0.015, 0.015)}


UDA: dict[str, Any] = {"unsup_targets": "soft", "threshold": 0.6, "temperature": 1.0}


@pytest.mark.parametrize(
    ("label", "args", "hidden_labels"),
    [
        ("FedAvg*", {"unsup_weight": 0.0, "prox_mu": 0.0}, "hidden"),
        ("FedAvg-SL", {"unsup_weight": 0.0, "prox_mu": 0.0}, "revealed"),
        ("FedProx-SL", {"unsup_weight": 0.0, "prox_mu": 0.1}, "revealed"),
        ("FedAvg+UDA", {**UDA, "unsup_weight": 8.0, "unsup_ramp": 20, "prox_mu": 0.0}, "hidden"),
        ("FedProx+UDA", {**UDA, "unsup_weight": 8.0, "unsup_ramp": 20, "prox_mu": 0.1}, "hidden"),
        ("FedAvg+FixMatch", {**FIXMATCH, "unsup_weight": 1.0, "unsup_ramp": 0, "prox_mu": 0.0}, "hidden"),
        ("FedProx+FixMatch", {**FIXMATCH, "unsup_weight": 1.0, "unsup_ramp": 0, "prox_mu": 0.1}, "hidden"),
    ],
)
def test_recipes_of_the_baselines(suite: Suite, label: str, args: dict[str, Any], hidden_labels: str) -> None:
    run = config(suite, "1", "cifar10", label)
    assert run.method.name == "local_ssl"
    assert {name: run.method.init_args[name] for name in args} == args
    assert run.data.init_args["hidden_labels"] == hidden_labels


@pytest.mark.parametrize(
    ("label", "base", "changed"),
    [
        ("FedAvg*, statistics of its own", "FedAvg*", {}),
        ("FedAvg*, SGD", "FedAvg*", {"optimizer": "sgd", "lr": 0.03, "weight_decay": 5e-4, "clip_norm": 5.0}),
        ("FedAvg-SL, one pass", "FedAvg-SL", {"steps_per_visit": None}),
        (
            "FedAvg+UDA, its paper's constants",
            "FedAvg+UDA",
            {"threshold": 0.8, "temperature": 0.4, "unsup_weight": 1.0, "unsup_ramp": 0},
        ),
        ("FedAvg+FixMatch, its paper's threshold", "FedAvg+FixMatch", {"threshold": 0.95}),
        ("FedDure, 10 unlabelled images", "FedDure", {"unlabelled_bs": 10}),
        ("FedDure, F-reg of the code", "FedDure", {"freg_hidden": 100, "freg_lr": 1e-3}),
        ("FedDure to the letter", "FedDure", {}),
    ],
)
def test_choices_change_one_thing(suite: Suite, label: str, base: str, changed: dict[str, Any]) -> None:
    ours, theirs = (config(suite, "choices", "cifar10", name).method for name in (label, base))
    assert {k: v for k, v in ours.init_args.items() if v != theirs.init_args[k]} == changed
    assert changed or ours.class_path != theirs.class_path

"""The ProxyFL suite: the protocol of SAGE and ProxyFL, published values, and ports that share it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmark.config import RunConfig
from benchmark.registry import KINDS, find_class
from benchmark.report.tables import render
from benchmark.suites.suite import Suite
from datamodules.common.errors import ConfigError
from datamodules.views.batches import epoch
from federations import few_data, make_federation, site_of
from methods.base import Pass
from methods.models import num_parameters
from papers import load

PUBLISHED_ONLY = {"FedLabel", "FedLoke"}
JOINT = {"FedAvg", "FedProx", "FedAvg-SL", "FixMatch-LPL", "FixMatch-GPL", "FedProx+FixMatch", "FedAvg+FlexMatch"}
JOINT |= {"SAGE", "ProxyFL"}
PORTS = {"FedMatch", "FedDure", "FedDB"}
ROUNDS = {"CIFAR10": 300, "CIFAR100": 500, "SVHN": 150, "CINIC10": 400}
TRAIN = {"CIFAR10": 50_000, "CIFAR100": 50_000, "SVHN": 73_257, "CINIC10": 90_000}
LABELS = {"CIFAR10": 5000, "CIFAR100": 5000, "SVHN": 4600, "CINIC10": 9000}


@pytest.fixture(scope="module")
def proxyfl() -> Suite:
    return load("proxyfl")


def config(
    proxyfl: Suite, table: str, dataset: str, method: str, scale: str = "paper", alpha: str = "0.1"
) -> RunConfig:
    row = next(
        r
        for r in proxyfl.rows
        if (r.table, r.dataset, r.method) == (table, dataset, method) and r.columns.get("alpha", alpha) == alpha
    )
    return proxyfl.run(row, scale).config


def test_every_published_value_has_a_row(proxyfl: Suite) -> None:
    published = proxyfl.published()
    assert Counter(key[0] for key in published) == {"1": 168, "6": 168, "2": 48}
    rows = {row.key("acc") for row in proxyfl.rows}
    assert set(published) <= rows
    assert {key[0] for key in rows - set(published)} == {"eight", "presets"}


def test_published_values(proxyfl: Suite) -> None:
    """Cells of the corners, and the paper's claims, of which its own rows are the margin."""
    values = proxyfl.published()

    def cell(table: str, dataset: str, method: str, alpha: str) -> float:
        return float(values[table, dataset, method, (("alpha", alpha),), "acc"])

    assert values["1", "CIFAR10-5000", "FedAvg", (("alpha", "0.1"),), "acc"] == "69.60"
    assert values["6", "CINIC10-18000", "ProxyFL", (("alpha", "1"),), "acc"] == "81.46"
    assert values["1", "SVHN-4600", "FedAvg+FlexMatch", (("alpha", "0.5"),), "acc"] == "55.59"
    for key in values:
        if key[0] in "16":
            table, dataset, _, ((_, alpha),), _ = key
            order = [cell(table, dataset, method, alpha) for method in ("ProxyFL", "SAGE", "FixMatch-GPL")]
            assert order == sorted(order, reverse=True)
            name = dataset.partition("-")[0]
            assert cell(table, dataset, "FedAvg-SL", alpha) == cell("1", f"{name}-{LABELS[name]}", "FedAvg-SL", alpha)


def test_the_ablation_repeats_two_rows_of_the_comparison(proxyfl: Suite) -> None:
    values = proxyfl.published()
    for table, dataset, method, columns, metric in [key for key in values if key[0] == "2"]:
        alpha = tuple(pair for pair in columns if pair[0] == "alpha")
        if method in ("FixMatch-GPL", "ProxyFL"):
            assert values[table, dataset, method, columns, metric] == values["1", dataset, method, alpha, metric]


def test_methods_that_are_published_only_say_so(proxyfl: Suite) -> None:
    waiting = {row.method: row.pending for row in proxyfl.rows if row.pending}
    assert set(waiting) == PUBLISHED_ONLY
    assert all(reason.startswith("published only: ") for reason in waiting.values())
    plan = proxyfl.plan("quick")
    first = next(table for table in render(proxyfl, plan, proxyfl.published()) if table.number == "1")
    lines = [line for line in first.cells if line.row.method == "FedLabel"]
    assert len(lines) == 12 and all(line.published and line.lacks == "pending" for line in lines)
    assert "FedLabel (published only: its rules are not at hand)" in first.markdown
    with pytest.raises(ConfigError, match="pending: published only"):
        proxyfl.row("1/CIFAR10-5000/FedLoke/alpha=1", "paper")


def test_tables_say_which_rows_are_ports(proxyfl: Suite) -> None:
    for table in proxyfl.tables:
        ports = PORTS & {row.method for row in table.rows}
        assert ("ports to this protocol" in table.title) == bool(ports)
        assert all(name in table.title for name in ports)


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("table", ["1", "6"])
def test_paper_scale_is_the_protocol(proxyfl: Suite, table: str, name: str) -> None:
    labels = LABELS[name] * (2 if table == "6" else 1)
    for method in JOINT | PORTS:
        run = config(proxyfl, table, f"{name}-{labels}", method, alpha="0.5")
        data, args = run.data.init_args, run.method.init_args
        assert (run.model, run.model_args, run.rounds, run.report) == ("resnet8", {}, ROUNDS[name], "last")
        assert run.roster == {"participants": 8, "rule": "numpy_run"}
        assert (data["scenario"], data["num_clients"], data["num_labels"]) == ("all_clients", 20, labels)
        assert (data["partition"], data["beta"], data["labelled_partition"]) == ("pairs", 0.5, None)
        assert (data["partition_seed"], data["split_seed"]) == (None, None)
        assert data["union_mode"] == ("none" if method == "FedAvg-SL" else "labelled")
        assert data["hidden_labels"] == ("pooled" if method == "FedAvg-SL" else "hidden")
        assert data["flip"] == 0.5  # on SVHN, too
        assert data["pipeline"] == ("randaugment_levels_cutout" if method == "FedDure" else "randaugment_levels")
        assert (data["mean"], data["std"]) == ([0.4914, 0.4822, 0.4465], [0.2471, 0.2435, 0.2616])
        assert data["test_std"] != data["std"]
        assert (args["momentum"], args["nesterov"], args["weight_decay"]) == (0.9, False, 1e-4)
        assert (args["batch_size"], args["clip_norm"]) == (128, None)
        assert args["lr"] == (0.01 if method == "FedMatch" else 0.1)
        if method in JOINT:
            assert (args["local_epochs"], args["unlabelled_bs"], args["threshold"]) == (5, 256, 0.95)
            assert args["share_momentum"] is True
    assert proxyfl.scale("paper")["seeds"] == [0, 1, 2]
    network = num_parameters("resnet8", 100 if name == "CIFAR100" else 10)
    assert network == (1_250_724 if name == "CIFAR100" else 1_227_594)


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("FedAvg", "client_fixmatch", {"lambda_u": 0.0, "prox_mu": 0.0}),
        ("FedProx", "client_fixmatch", {"lambda_u": 0.0, "prox_mu": 0.001}),
        ("FedAvg-SL", "client_fixmatch", {"lambda_u": 0.0, "prox_mu": 0.0}),
        ("FixMatch-LPL", "client_fixmatch", {"pseudo_labels": "local", "lambda_u": 1.0, "prox_mu": 0.0}),
        ("FixMatch-GPL", "client_fixmatch", {"pseudo_labels": "global", "lambda_u": 1.0, "prox_mu": 0.0}),
        ("FedProx+FixMatch", "client_fixmatch", {"pseudo_labels": "local", "lambda_u": 1.0, "prox_mu": 0.001}),
        ("FedAvg+FlexMatch", "flexmatch", {"lambda_u": 1.0}),
        ("FedMatch", "fedmatch", {"threshold": 0.75, "lambda_s": 10.0, "lambda_l1": 1e-4, "lambda_l2": 10.0}),
        ("FedDure", "feddure", {"optimizer": "sgd", "unlabelled_bs": 256, "threshold": 0.0}),
        ("FedDB", "ablations", {"aggregation": "dma", "dpl": True, "full_batch": False, "lr_schedule": "constant"}),
        ("SAGE", "sage", {"lambda_u": 1.0}),
        ("ProxyFL", "proxyfl", {"icpl_weight": 1.0, "gpt_epochs": 100, "gpt_lr": 0.005}),
    ],
)
def test_rows_of_the_comparison(proxyfl: Suite, method: str, path: str, wanted: dict[str, Any]) -> None:
    run = config(proxyfl, "1", "CIFAR10-5000", method).method
    assert run.class_path.split(".")[1] == path
    assert {name: run.init_args[name] for name in wanted} == wanted


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("table", ["1", "6"])
@pytest.mark.parametrize("name", ROUNDS)
def test_ports_take_as_many_steps_as_the_rows_beside_them(proxyfl: Suite, name: str, table: str, scale: str) -> None:
    """Of n images of a client, an epoch has floor(n / batch) steps; FedMatch's keeps the short batch at the end."""
    dataset = f"{name}-{LABELS[name] * (2 if table == '6' else 1)}"
    runs = {method: config(proxyfl, table, dataset, method, scale) for method in ("FixMatch-GPL", *sorted(PORTS))}
    args = {method: run.method.init_args for method, run in runs.items()}
    data = runs["FixMatch-GPL"].data.init_args
    images = (TRAIN[name] - (data["validation"] or 0)) // data["num_clients"]
    steps = images // args["FixMatch-GPL"]["batch_size"]
    assert (args["FedDure"]["steps_per_visit"], args["FedDB"]["steps_per_epoch"]) == (steps, steps)
    assert args["FedMatch"]["batches"] == "shuffled"  # an epoch is a pass over the unlabelled images
    for method in ("FedDure", "FedDB"):
        assert args[method]["unlabelled_bs"] == args["FixMatch-GPL"]["unlabelled_bs"]
    for own in args.values():
        assert own["local_epochs"] == args["FixMatch-GPL"]["local_epochs"]
        assert own["batch_size"] == args["FixMatch-GPL"]["batch_size"]


@pytest.mark.parametrize("method", ["FixMatch-GPL", *sorted(PORTS)])
def test_a_visit_takes_these_steps(proxyfl: Suite, method: str) -> None:
    """Walked through at ``small``, on a few digits; FedDB trusts none of them."""
    run = config(proxyfl, "eight" if method != "FedMatch" else "1", "CIFAR10-5000", method, "small").method
    data = few_data(1, scenario="all_clients", num_labels=30, union_mode="labelled", pipeline="randaugment_maximal")
    found = find_class(run.class_path, KINDS["method"])
    federation = make_federation(found, data, **run.init_args)
    unlabelled = len(data.client(0).unlabelled)
    site = site_of(federation)
    passes = [made() if callable(made) else made for made in federation.method.local_work(site)]
    draws = {name: torch.Generator().manual_seed(0) for name in ("order", "augment")}

    def steps(made: Pass) -> int:
        streams = {name: replace(stream, views={}) for name, stream in made.streams.items()}
        return sum(1 for _ in epoch(streams, data, lambda purpose: draws[purpose.partition("/")[0]], made.steps))

    own = {"FixMatch-GPL": unlabelled // 32, "FedMatch": -(-unlabelled // 32)}
    assert [steps(made) for made in passes] == [own.get(method, 31)] * 2


def test_gpt_follows_the_data_set(proxyfl: Suite) -> None:
    for table, labels in (("1", 5000), ("6", 10000)):
        for name, epochs in (("CIFAR10", 100), ("CIFAR100", 10)):
            run = config(proxyfl, table, f"{name}-{labels}", "ProxyFL")
            assert run.method.init_args["gpt_epochs"] == epochs


@pytest.mark.parametrize("scale", ["paper", "small", "quick"])
def test_a_preset_changes_what_it_says(proxyfl: Suite, scale: str) -> None:
    plain = config(proxyfl, "presets", "CIFAR10-5000", "ProxyFL", scale)
    assert plain.data == config(proxyfl, "1", "CIFAR10-5000", "ProxyFL", scale).data

    def changed(label: str) -> tuple[dict[str, Any], dict[str, Any]]:
        run = config(proxyfl, "presets", "CIFAR10-5000", label, scale)
        data = {k: v for k, v in run.data.init_args.items() if plain.data.init_args.get(k) != v}
        return data, {k: v for k, v in run.method.init_args.items() if plain.method.init_args.get(k) != v}

    assert changed("released seeds") == ({"partition_seed": 7, "split_seed": 0}, {})
    quick = scale == "quick"  # normalises all images alike
    assert changed("one normalisation") == ({} if quick else {"test_mean": None, "test_std": None}, {})
    assert changed("Dirichlet over clients") == ({"partition": "dirichlet"}, {})
    assert changed("Dirichlet, weights as released") == ({"partition": "dirichlet"}, {})
    assert changed("momentum of each visit") == ({}, {"share_momentum": False, "reset_momentum": True})
    assert changed("as printed") == ({}, {"lr": 0.001} if quick else {})
    for label, name in (("as printed", "AsPrinted"), ("Dirichlet, weights as released", "ReleasedWeights")):
        run = config(proxyfl, "presets", "CIFAR10-5000", label, scale)
        assert run.method.class_path == f"methods.ablations.proxyfl.{name}"


def test_small_is_the_reduced_setting(proxyfl: Suite) -> None:
    """10 000 training images in all: 31 steps of 32 labelled and 64 unlabelled images per epoch, as 1000 make."""
    for row in proxyfl.rows:
        if row.pending:
            continue
        run = proxyfl.run(row, "small").config
        data, args, name = run.data.init_args, run.method.init_args, row.dataset.split("-")[0]
        assert TRAIN[name] - data["validation"] == 10_000
        assert data["num_labels"] == (2000 if row.table == "6" else 1000)
        assert (run.model, run.model_args, data["num_clients"]) == ("resnet8", {"width": 1}, 10)
        assert (run.roster["participants"], run.rounds) == (4, 25 if name == "SVHN" else 40)
        assert args["batch_size"] == 32
        if row.method in JOINT:
            assert (args["local_epochs"], args["unlabelled_bs"]) == (2, 64)
        if row.method == "FedDure":
            assert (args["local_epochs"], args["steps_per_visit"], args["unlabelled_bs"]) == (2, 31, 64)
        if row.method == "FedDB":
            assert (args["local_epochs"], args["steps_per_epoch"], args["unlabelled_bs"]) == (2, 31, 64)


def test_quick_runs_every_row_on_digits(proxyfl: Suite) -> None:
    plan = proxyfl.plan("quick")
    assert {run.config.data.name for run in plan.runs.values()} == {"digits"}
    assert {run.config.rounds for run in plan.runs.values()} == {20}
    assert all(plan.run(row, 0) for row in proxyfl.rows if not row.pending)
    of_table = {plan.run(row, 0).id for row in proxyfl.rows if row.table == "1" and not row.pending}
    assert plan.seeds == (0, 1, 2)
    assert len(of_table) == 13 * 3  # the data sets are one here, but for ProxyFL's GPT on CIFAR-100


@pytest.mark.parametrize("scale", ["paper", "small", "quick"])
def test_the_ablation_leaves_out_what_it_says_at_every_scale(proxyfl: Suite, scale: str) -> None:
    for method, used in (("GPT", (0, 100)), ("ICPL", (1, 0)), ("ProxyFL", (1, 100))):
        args = config(proxyfl, "2", "CIFAR10-5000", method, scale).method.init_args
        assert (args["icpl_weight"], args["gpt_epochs"]) == used

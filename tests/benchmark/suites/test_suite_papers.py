"""The papers' suites: a row for every published value, printed numbers that agree, and cells that are one run."""

from collections import Counter
from dataclasses import replace

import pytest

from papers import load

PRINTED = {"cbafed": 68, "feddb": 30, "feddure": 97, "fl2": 85, "proxyfl": 336, "rscfed": 144}
PORTS = ("FedMatch", "FedDure", "FedDB")
TRAIN = {"CIFAR10": 50_000, "CIFAR100": 50_000, "SVHN": 73_257, "CINIC10": 90_000}
"""Training images of ProxyFL's data sets."""


@pytest.mark.parametrize("paper", PRINTED)
def test_every_published_value_has_a_row(paper):
    suite = load(paper)
    keys = Counter(row.key(metric) for table in suite.tables for row in table.rows for metric in table.metrics)
    printed = [key for key in suite.published() if not key[-1].endswith(" std")]
    assert len(printed) == PRINTED[paper] and {keys[key] for key in printed} == {1}


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_ports_to_proxyfl_take_as_many_steps_as_the_rows_beside_them(scale):
    """Of n images of a client, an epoch has floor(n / batch) steps; an epoch of FedMatch is a pass over the images."""
    suite = load("proxyfl")
    for row in suite.rows:
        if row.table in "16" and row.method in PORTS:
            (beside,) = [one for one in suite.rows if one.key("") == replace(row, method="FixMatch-GPL").key("")]
            config = suite.run(beside, scale).config
            own, theirs = suite.run(row, scale).config.method.init_args, config.method.init_args
            data = config.data.init_args
            images = (TRAIN[row.dataset.partition("-")[0]] - (data["validation"] or 0)) // data["num_clients"]
            steps = own.get("steps_per_visit", own.get("steps_per_epoch"))
            assert steps == (None if row.method == "FedMatch" else images // theirs["batch_size"])
            assert all(own[name] == theirs[name] for name in ("local_epochs", "batch_size"))


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_every_cell_of_fl2_has_a_row_with_and_one_without_pretraining(scale):
    """(FL)2 alone was released with it: so each of its cells needs (FL)2 without, and SemiFL with the same."""
    suite = load("fl2")
    controls = [suite.run(row, scale).config for row in suite.rows if row.table.startswith("pretraining")]
    for row in suite.rows:
        if row.table in "13" and row.method in ("fl2", "semifl"):
            main = suite.run(row, scale).config
            alike = [c for c in controls if (c.method.name, c.data) == (main.method.name, main.data)]
            assert main in alike and len({c.method.init_args["server_pretrain"] for c in alike}) == 2, row.name

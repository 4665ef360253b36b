"""Every rule in every scenario gives the partition that it gave when records were made; ``golden/partitions.json``.

Written anew by ``python tests/datamodules/partition/test_pinned.py`` in a checkout whose ``tests`` are importable.
"""

import hashlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.digits import Digits
from datamodules.partition.draw import shares
from datamodules.partition.partition import labelled_sets, unlabelled_sets
from datamodules.partition.sites import HIDDEN
from label_pools import assert_sound

FILE = Path(__file__).parents[2] / "golden" / "partitions.json"
SIZES = (90, 80, 70, 60, 60, 55, 55, 50, 40, 40)
LABELS = np.random.RandomState(0).permutation(np.repeat(np.arange(10), SIZES))
PARTLY_KNOWN = np.where(np.arange(600) % 9, LABELS, HIDDEN)
EVERYBODY = {"scenario": "all_clients"}
RULES: dict[str, dict[str, Any]] = {
    "dirichlet": {"min_size": 5},
    "dirichlet in order": {"shuffle": False, "min_size": 1, "beta": 0.3},
    "dirichlet of seven classes": {"split_classes": 7, "min_size": 1},
    "per client": {"partition_variant": "per_client", "min_size": 1, "beta": 0.5},
    "per client in order": {"partition_variant": "per_client", "min_size": 1, "beta": 1e-3, "shuffle": False},
    "pairs": {"partition": "pairs", "split_seed": 0},
    "iid": {"partition": "iid"},
    "iid, all": {"partition": "iid", "iid_remainder": "last", "iid_permutations": 2},
    "iid by class": {"partition": "iid", "iid_stratified": True},
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "one": {},
    "two": {"labelled_clients": 2, "picked": 1},
    "first": {"labelled_pick": "index0", "labelled_clients": 3},
    "any": {"labelled_pick": "random", "labelled_clients": 2},
    "all": {"labelled_clients": 7},
    "same client": {"labelled_from": 5},
    "histogram": {"labelled_histogram": [2] * 10},
    "server": {"scenario": "server", "num_labels": 40},
    "pools": {**EVERYBODY, "num_labels": 100, "validation": 60, "balanced_holdout": 50},
    "pools, labels spread alike": {**EVERYBODY, "num_labels": 100, "labelled_partition": "iid"},
    "pools in order": {**EVERYBODY, "num_labels": 100, "labelled_pool_order": "dataset", "labelled_partition": "iid"},
    "pools, held out": {**EVERYBODY, "num_labels": 100, "labelled_holdout": 0.25},
    "a share": {**EVERYBODY, "label_fraction": 0.2},
    "some of each class": {**EVERYBODY, "labels_per_class": 2, "labelled_repeats": "second_class"},
    "no hidden label": {"unlabelled_only": True, "labelled_clients": 2},
}


def digest(rule: str, scenario: str) -> str:
    """Of all that is drawn: who holds what, what is added to it, and what nobody holds."""
    options = {**Digits().hparams, "num_clients": 7, **RULES[rule], **SCENARIOS[scenario]}
    labels = PARTLY_KNOWN if options["unlabelled_only"] else LABELS
    made = shares(options, labels, 3)
    assert_sound(made.partition, len(labels))
    union = "code_index" if made.partition.labelled_pool is not None else "labelled"
    lists = [labelled_sets(made.partition, labels, options["labelled_repeats"])]
    if options["labelled_holdout"] == 0:
        lists.append(unlabelled_sets(made.partition, union))
    parts = [*lists[0], *lists[-1], made.validation, made.tested, made.partition.pool]
    told = json.dumps([made.partition.hash, [part.tolist() for part in parts]])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@pytest.mark.parametrize("rule", RULES)
def test_partitions_are_those_of_the_records(rule: str) -> None:
    pinned = json.loads(FILE.read_text())[rule]
    assert {scenario: digest(rule, scenario) for scenario in SCENARIOS} == pinned


if __name__ == "__main__":
    every: dict[str, dict[str, str]] = {rule: {} for rule in RULES}
    for one, other in product(RULES, SCENARIOS):
        every[one][other] = digest(one, other)
    FILE.write_text(json.dumps(every, indent=1) + "\n")

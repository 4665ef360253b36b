"""The papers' suites: a row for every published value, printed numbers that agree, and cells that are one run."""

from collections import Counter

import pytest

from papers import load

PRINTED = {"cbafed": 68, "feddb": 30, "feddure": 97, "fl2": 85, "proxyfl": 336, "rscfed": 144}


@pytest.mark.parametrize("paper", PRINTED)
def test_every_published_value_has_a_row(paper):
    suite = load(paper)
    keys = Counter(row.key(metric) for table in suite.tables for row in table.rows for metric in table.metrics)
    printed = [key for key in suite.published() if not key[-1].endswith(" std")]
    assert len(printed) == PRINTED[paper] and {keys[key] for key in printed} == {1}

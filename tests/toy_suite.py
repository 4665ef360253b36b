"""A suite of two rows on digits and its command, and a board of one row."""

from benchmark.cli import main

HEAVY = "torch", "lightning", "wandb", "matplotlib", "pandas", "scipy"
"""Packages that take seconds to import; commands must import them only when needed."""

SUITE = """
paper: toy
title: A toy paper
published: rscfed.csv
report: best
base: {set: {data: digits, data.num_clients: 3, rounds: 2, method.batch_size: 64}}
datasets: {A: {}}
labels: {low: {method: fedavg}, mid: {method: fed_consist, method.warmup_rounds: 1}}
tables:
  1: {title: One, datasets: [A], metrics: [acc], rows: [{method: low}, {method: mid}]}
  2: {title: Two, datasets: [A], metrics: [acc], rows: [{method: low}]}
scales: {quick: {seeds: [1, 2], note: tiny}}
"""

BOARD = """
paper: board
title: A board
published: null
report: last
ranked: true
base: {set: {data: few_digits.FewDigits, data.num_clients: 3, data.labelled_clients: 3, rounds: 2}}
datasets: {A: {}}
labels: {low: {method: fedavg}}
tables:
  one: {title: One, datasets: [A], metrics: [acc], reference: low, set: {data.partition: iid}, rows: [{method: low}]}
scales:
  quick:
    seeds: [0, 1, 2]
    tuning:
      rates: [method.lr]
      seeds: [1000]
      set: {data.labelled_holdout: 0.5}
"""


def table(*more: str) -> int:
    """Run ``table`` for the suite in the working folder, and return its exit status."""
    return main(["table", "--paper", "toy.yaml", "--jobs", "1", "--data-dir", "d", *more])

"""Submissions: a folder with a leaderboard row, and the evidence that it follows the rules.

::

    suite.yaml          the leaderboard's suite, extended by the method's label and row
    submission.yaml     scale, and the results of the contract tests
    my_method.py        the method's source, unless it is part of this repository
    tuned/              the chosen options, and all trials
    runs/               record.json, metrics.jsonl and config.yaml of every seed
"""

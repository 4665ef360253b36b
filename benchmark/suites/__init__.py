"""The papers' tables as suites of runs."""

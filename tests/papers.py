"""The suites of this repository, each loaded once, so that its tests share the rows that it has resolved."""

from functools import cache

from benchmark.suites import suite

load = cache(suite.load)

"""How fast the suite is, as ratios within one run: ``python -m benchmark.perf`` (``make perf``)."""

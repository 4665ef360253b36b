"""How fast the suite is, as ratios within one run: ``make perf``."""

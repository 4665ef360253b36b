"""Performance measurements, as ratios within one run: ``make perf``."""

"""Measurements of speed and memory: ``make perf``."""

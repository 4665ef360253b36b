"""Infrastructure of runs: records, locks, environment, metrics, loggers, data provenance."""

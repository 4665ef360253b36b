"""Infrastructure of runs: records, folders, locks, code identity, environment, loggers."""

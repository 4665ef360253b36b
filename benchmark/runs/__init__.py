"""What a run leaves and needs, whoever starts it: records, locks, the machine, metrics, loggers, facts of its data."""

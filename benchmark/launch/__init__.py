"""Processes, locks and the machine that runs take place on."""

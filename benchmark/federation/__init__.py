"""The loop over rounds, the engines that run visits, and their checkpoints."""

REVISION = 1
"""Of the numbers that the framework and the data sets give: raised by hand when they change for some method."""

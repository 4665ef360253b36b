"""The loop over rounds, the engine that runs visits, and checkpoints."""

REVISION = 1
"""Of the numbers that the framework and the data sets give: raised by hand when they change for some method."""

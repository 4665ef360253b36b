"""FixMatch with pseudo-labels made in every step."""

from methods.fixmatch import FixMatch


class EveryStep(FixMatch):
    """Pseudo-labels in every step, as in FixMatch's paper; federated codes ((FL)2, FedDB) make them once per round."""

    every_step = True

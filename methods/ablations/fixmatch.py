"""FixMatch with pseudo-labels made in every step."""

from methods.fixmatch import FixMatch
from methods.parts.pseudo_labels import LabelsEveryStep


class EveryStep(LabelsEveryStep, FixMatch):
    """Pseudo-labels in every step, as in FixMatch's paper; federated codes ((FL)2, FedDB) make them once per round."""

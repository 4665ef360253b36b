"""FixMatch with labels of every step."""

from methods.fixmatch import FixMatch
from methods.parts.pseudo_labels import LabelsEveryStep


class EveryStep(LabelsEveryStep, FixMatch):
    """FixMatch's paper: the model labels in every step; the federated codes ((FL)2, FedDB) do so once per round."""

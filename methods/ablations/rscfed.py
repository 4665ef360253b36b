"""Variants of RSCFed."""

from datamodules.partition.roster import Roster
from methods.rscfed import RSCFed


class LabelledInEverySubset(RSCFed):
    """Every subset has a client with labels: a disabled line of the released code, not mentioned in the paper."""

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """Draw subsets; if one has no labelled client, its last client is replaced by the first labelled one."""
        subsets, labelled = super().select_clients(round, roster), roster.labelled
        return [[*subset[:-1], labelled[0]] if set(subset).isdisjoint(labelled) else subset for subset in subsets]

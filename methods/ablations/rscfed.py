"""Variants of RSCFed."""

from datamodules.partition.roster import Roster
from methods.rscfed import RSCFed


class LabelledInEverySubset(RSCFed):
    """Every subset holds a client with labels: a line of the released code that is disabled; the paper is silent."""

    def select_clients(self, round: int, roster: Roster) -> list[list[int]]:
        """The draws; where nobody holds labels, the first labelled client takes the last one's place."""
        subsets = super().select_clients(round, roster)
        labelled = list(roster.labelled)
        return [subset if set(subset) & set(labelled) else [*subset[:-1], labelled[0]] for subset in subsets]

"""What a method asks of the clients there are."""

from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster


def require_labels(roster: Roster) -> None:
    """Refuse clients of whom none holds labels, for a method that has nothing else to learn from.

    Raises:
        ConfigError: nobody does.
    """
    if not roster.labelled:
        raise ConfigError(
            "no client holds labels; choose data.scenario=partial_clients, or a method that trains at the server"
        )

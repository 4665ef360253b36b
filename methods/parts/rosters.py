"""What a method asks of the clients and the server there are."""

from datamodules.base import SiteData
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


def require_server_labels(data: SiteData) -> None:
    """Refuse a server without labels, for a method that trains nowhere else on any.

    Raises:
        ConfigError: it has none.
    """
    if not len(data.labelled):
        raise ConfigError("the server has no labels to train on; set data.scenario=server and data.num_labels")

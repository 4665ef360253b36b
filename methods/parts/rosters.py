"""Checks that the clients or the server hold labels."""

from datamodules.base import SiteData
from datamodules.common.errors import ConfigError
from datamodules.partition.roster import Roster


def require_labels(roster: Roster) -> None:
    """Refuse a roster without labelled clients, for a method that learns from their labels only.

    Raises:
        ConfigError: no client holds labels.
    """
    if not roster.labelled:
        raise ConfigError(
            "no client holds labels; choose data.scenario=partial_clients, or a method that trains at the server"
        )


def require_server_labels(data: SiteData) -> None:
    """Refuse a server without labels, for a method that uses labels only there.

    Raises:
        ConfigError: the server has no labels.
    """
    if not len(data.labelled):
        raise ConfigError("the server has no labels to train on; set data.scenario=server and data.num_labels")

"""A server that holds labels and trains on them after every aggregation."""

from typing import Any, ClassVar

from torch import nn

from datamodules.base import Scenario, SiteData
from datamodules.common.errors import ConfigError
from methods.base import FedMethod, Pass, Site, Stream


class LabelsAtServer(FedMethod):
    """Fine-tune the global model on the server's labels, if any, in every round (SemiFL, (FL)2).

    Args:
        model: the network.
        server_epochs: passes over the server's labels per round, with weak views and mean cross-entropy.
        server_batch_size: samples per step at the server.
        server_pretrain: how often this routine runs before the first round (with the same optimiser state).
    """

    scenario: ClassVar[Scenario] = "server"

    needs_labels: ClassVar[bool] = False
    """Whether the server must hold labels, as the clients use none."""

    def __init__(
        self,
        model: nn.Module,
        server_epochs: int = 5,
        server_batch_size: int = 10,
        server_pretrain: int = 0,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)

    def server_step(self, server: Site) -> None:
        """Fine-tune on the server's labels, if any; before the first round ``server_pretrain`` times.

        Raises:
            ConfigError: ``needs_labels``, and the server has none.
        """
        if not len(server.data.labelled):
            if self.needs_labels:
                raise ConfigError("the server has no labels to train on; set data.scenario=server and data.num_labels")
            return
        work = [Pass({"labelled": self.server_stream(server.data)})] * self.hparams.server_epochs
        for _ in range(self.hparams.server_pretrain if server.visit.before_first_round else 1):
            server.fit(work)

    def server_stream(self, data: SiteData) -> Stream:
        """Return the server's labelled images in batches of ``server_batch_size``."""
        h, fields = self.hparams, {"y": data.labels}
        return Stream(data.labelled, h.server_batch_size, self.views["labelled"], fields, min_batch=h.min_batch)

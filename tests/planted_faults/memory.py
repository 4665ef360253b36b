"""Faults of memory: what a visit or a round leaves behind, or changes for others."""

from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from methods.base import Batch, LocalWork, Site, Visit
from planted_faults import helper
from planted_faults.sound import Sound


class LeakingPrior(Sound):
    """The prior is a plain tensor, so that one client's continues another's."""

    scopes = {"centre": "server"}

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        del self.prior
        self.prior = torch.full((num_classes,), 1.0 / num_classes)


class LastingAttribute(Sound):
    """A Python number counts this process's visits."""

    visits: int = 0

    def local_work(self, client: Site) -> LocalWork:
        """Count the visit."""
        self.count(client)
        return super().local_work(client)

    def count(self, client: Site) -> None:
        """In an attribute of its own."""
        self.visits += 1

    def learning_rate(self) -> float:
        """It falls with the visits."""
        return super().learning_rate() / (1 + 0.1 * self.visits)


class LateClassAttribute(LastingAttribute):
    """The same in a number that the class gets at the first visit."""

    def count(self, client: Site) -> None:
        """For all instances."""
        type(self).visits = self.visits + 1


class LastingClassAttribute(LastingAttribute):
    """The same in a class attribute, a list shared by all instances."""

    seen: list[int] = []

    def count(self, client: Site) -> None:
        """Remember who was there."""
        self.seen.append(client.visit.client)

    @property
    def visits(self) -> int:  # type: ignore[override]
        """All of them."""
        return len(self.seen)


class Counts:
    """A mixin, which is no method."""

    seen: list[int] = []


class LastingMixin(Counts, LastingClassAttribute):
    """The same in a class attribute of a mixin."""


class LastingHelper(LastingClassAttribute):
    """The same in a global of a module that the method's module imports."""

    @property
    def seen(self) -> list[int]:  # type: ignore[override]
        """The module's."""
        return helper.VISITED


@cache
def pace() -> list[float]:
    """A list for as long as the process lives."""
    return []


class LastingCache(Sound):
    """The rate is that of the first visit of this process, in a list that ``functools.cache`` keeps."""

    def known(self) -> list[float]:
        """Everybody's."""
        return pace()

    def learning_rate(self) -> float:
        """It falls from round to round, but for those who have one."""
        known = self.known()
        if not known:
            known.append(super().learning_rate() / (1 + self.visit.round))
        return known[0]


class LastingCachedMethod(LastingCache):
    """The same with a list for each client, by way of a static method."""

    @staticmethod
    @lru_cache(maxsize=99)
    def of_client(client: int) -> list[float]:
        """The client's."""
        return []

    def known(self) -> list[float]:
        """The client's."""
        return self.of_client(self.visit.client)


class StatePerClient(Sound):
    """Clients keep state in an attribute, which is lost in another process or after an interruption."""

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.priors: dict[int, Tensor] = {}

    def local_work(self, client: Site) -> LocalWork:
        """Restore the client's prior."""
        self.mine = self.priors.setdefault(client.visit.client, self.prior.clone())
        return super().local_work(client)

    def follow(self, mean: Tensor) -> None:
        """Store it."""
        self.mine.mul_(0.5).add_(0.5 * mean)

    def known_prior(self) -> Tensor:
        """The own one."""
        return self.mine


class LastingBuffer(Sound):
    """A buffer that is not in the state dict."""

    pace: Tensor

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.register_buffer("pace", torch.ones(()), persistent=False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Later steps count less."""
        self.pace.mul_(0.99)
        return super().training_step(batch, batch_idx) * self.pace


class ServerMemory(Sound):
    """The server keeps state in an attribute, which is not in checkpoints."""

    rounds = 0

    def aggregate(self, uploads: Any) -> None:
        """Later rounds shrink a bias."""
        super().aggregate(uploads)
        self.rounds += 1
        with torch.no_grad():
            self.model.head.classifier.bias.mul_(1.0 - 0.01 * self.rounds)


class PredictsByMemory(Sound):
    """The server's predictions depend on the round through an unregistered attribute."""

    sharpness = 1.0

    def aggregate(self, uploads: Any) -> None:
        """Sharper from round to round."""
        super().aggregate(uploads)
        self.sharpness += 0.5

    def predict(self, x: Tensor) -> Tensor:
        """Sharpened, where it is tested."""
        found = super().predict(x)
        if self.training:
            return found
        sharp = found**self.sharpness
        return sharp / sharp.sum(dim=1, keepdim=True)


class BroadcastInPlace(Sound):
    """Sending the shared prior sharpens it in place, so that later clients get it sharpened again."""

    def broadcast(self, server: Any, visit: Visit) -> dict[str, Tensor]:
        """Change the server's own tensor."""
        server["usual"].mul_(0.9)
        return super().broadcast(server, visit)


class CountsSelections(Sound):
    """What is counted is undone before anybody reads it."""

    def select_clients(self, round: int, roster: Any) -> list[list[int]]:
        """Count in a buffer."""
        self.usual.add_(1)
        return super().select_clients(round, roster)


class LabelsInPlace(Sound):
    """A client writes over its own labels."""

    def local_work(self, client: Site) -> LocalWork:
        """The first label becomes 0."""
        client.data.labels[:1] = 0
        return super().local_work(client)


UNIFORM = torch.full((10,), 0.1)


class CommonBuffer(Sound):
    """All instances register the same tensor and change it in place."""

    def __init__(self, model: nn.Module, num_classes: int, **base: Any) -> None:
        super().__init__(model, num_classes, **base)
        self.usual = UNIFORM


class BindsAnew(Sound):
    """The prior is rebound to a new tensor in every step, while clients keep the initial one."""

    def follow(self, mean: Tensor) -> None:
        """Make a new tensor."""
        self.prior = 0.5 * self.prior + 0.5 * mean

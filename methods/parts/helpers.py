"""Helpers: what clients get of other clients whose models answer alike."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from methods.base import FedMethod, Upload, Visit


class Helpers(FedMethod):
    """The server sends a client a vector of each of the clients whose models answer most like its own.

    It feeds one noise image to every uploaded model; the nearest outputs count. In every ``helper_every``-th round,
    clients that took part before get the last ``offered`` vectors of their helpers, in the slots ``helper``.

    Args:
        model: the network.
        num_classes: number of classes.
        num_clients: registered clients.
        image_shape: channels, height and width of the noise image, or the length of a feature vector.
        helpers: number of helpers; 0: none.
        helper_every: rounds between two uses of helpers.
    """

    scopes = {"noise": "local", "helper": "local", "helper_count": "local", "vectors": "server", "seen": "server"}
    noise: Tensor
    helper: nn.ParameterList
    helper_count: Tensor
    vectors: Tensor
    seen: Tensor

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        num_clients: int,
        image_shape: Sequence[int],
        helpers: int = 2,
        helper_every: int = 10,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.hparams.image_shape = list(image_shape)
        self.helper = nn.ParameterList()
        self.register_buffer("helper_count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("noise", noise_image(image_shape))
        self.register_buffer("vectors", torch.zeros(num_clients, num_classes))
        self.register_buffer("seen", torch.zeros(num_clients, dtype=torch.bool))

    def make_slots(self, size: int) -> None:
        """Register a slot for the vector of each helper, of this length."""
        for _ in range(self.hparams.helpers):
            self.helper.append(nn.Parameter(torch.zeros(size), requires_grad=False))

    def offered(self, upload: Upload) -> Tensor:
        """Return what a client's upload offers to those it helps: a vector as long as the slots."""
        raise NotImplementedError(f"{type(self).__name__} must define offered(upload)")

    def received(self) -> list[Tensor]:
        """Return the helpers' vectors of this visit; empty in rounds without helpers."""
        return [slot.detach() for slot in self.helper[: int(self.helper_count)]]

    @torch.no_grad()
    def answer(self) -> Tensor:
        """Predict the noise image, ``[C]``."""
        self.eval()
        with self.autocast():
            return self.predict(self.noise)[0]

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Aggregate, and store the clients' answers, which their uploads have as ``outputs``."""
        super().aggregate(uploads)
        for upload in uploads:
            self.vectors[upload.visit.client] = upload.stats["outputs"]
            self.seen[upload.visit.client] = True

    def remember(self, uploads: Sequence[Upload]) -> dict[int, dict[str, Tensor]]:
        """Keep what every client offers, for the clients it will help."""
        if not self.hparams.helpers:
            return {}
        return {upload.visit.client: {"psi": self.offered(upload)} for upload in uploads}

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Send the shared tensors, and in a round with helpers their vectors."""
        sent = super().broadcast(server, visit)
        chosen = self.choose_helpers(server, visit)
        for slot, helper in enumerate(chosen):
            sent[f"helper.{slot}"] = self.memory[helper]["psi"]
        if chosen:
            sent["helper_count"] = torch.tensor(len(chosen), device=self.device)
        return sent

    def choose_helpers(self, server: Mapping[str, Tensor], visit: Visit) -> list[int]:
        """Clients that help; none in rounds without helpers, or if the client has not taken part yet."""
        h = self.hparams
        if not h.helpers or (visit.round + 1) % h.helper_every:
            return []
        return nearest(server["vectors"], server["seen"], visit.client, h.helpers)


def noise_image(shape: Sequence[int]) -> Tensor:
    """Return the noise image ``[1, *shape]`` used to compare models; always the same.

    Normal with mean and deviation 125, truncated at two deviations, clipped to [0, 255], divided by 255 (released
    code).
    """
    noise = torch.empty(1, *shape)
    generator = torch.Generator().manual_seed(0)
    nn.init.trunc_normal_(noise, mean=125.0, std=125.0, a=-125.0, b=375.0, generator=generator)
    return noise.clamp_(0.0, 255.0) / 255.0


def nearest(vectors: Tensor, seen: Tensor, client: int, count: int) -> list[int]:
    """Return the ``count`` nearest clients by Euclidean distance of their vectors, nearest first.

    Args:
        vectors: ``[clients, C]``.
        seen: which rows hold a vector, bool ``[clients]``.
        client: the client whose neighbours are sought; not in the result, which is empty if it has no vector.
        count: how many; fewer if fewer are known. In a tie the lower id comes first.
    """
    known = seen.tolist()
    if not known[client]:
        return []
    distances = torch.linalg.vector_norm(vectors.double() - vectors[client].double(), dim=1).tolist()
    others = [k for k, is_known in enumerate(known) if is_known and k != client]
    return sorted(others, key=lambda k: (distances[k], k))[:count]

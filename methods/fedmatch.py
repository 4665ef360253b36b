"""FedMatch: weights split into a supervised and an unsupervised part, and helpers that vote on labels."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from datamodules.base import SiteData
from methods.base import Batch, LocalWork, Pass, Site, Stream, Upload, Visit
from methods.parts.server import LabelsAtServer, ServerMomentum
from methods.parts.tensors import debias, masked_mean, one_hot, wide

PSI_SCALE = 0.2  # what psi is of sigma at first
LAMBDA_I = LAMBDA_A = 0.01


class FedMatch(LabelsAtServer, ServerMomentum):
    """Inter-client consistency and disjoint learning (Jeong et al., ICLR 2021), labels at the server or at the clients.

    Every weight is a sum ``theta = sigma + psi``. Labels train sigma alone, with ``lambda_s CE(y, p(x))``. Unlabelled
    images u train psi alone, with ::

        lambda_i / H sum_j KL(p_j(u) || p(u)) + lambda_a CE(y_hat, p(strong(u)))
            + lambda_l1 sum |psi| + lambda_l2 sum (sigma - psi)^2

    where the first two terms are means over the images with ``max p(u) >= threshold``, p_j are the predictions of H
    helpers, and y_hat is the class with the most votes of the model and its helpers (the lowest class in a tie). A
    helper is the receiver's own sigma, as sent, with the last psi of another client. The server feeds one noise image
    to every uploaded model; a client's helpers are the clients whose outputs are nearest to its own. They are sent in
    every ``helper_every``-th round, to clients that took part before. An upload holds only the entries that differ from
    the server's by more than ``delta``; in this comparison entries of psi of at most ``l1_threshold`` count as 0, but
    they are sent as they are. Entries missing from an upload keep the server's value, at the client as well. The server
    averages uniformly. With labels at the server, sigma is trained there, as in ``LabelsAtServer``.

    The default has the optimiser, batches and epochs of (FL)2's Table 4, with labels at the server. The other recipes
    are rows of suites: ``fedmatch_repo`` (``fl2``) is the released one with labels at the server, ``FedMatch``
    (``feddure``) the released one with labels at the clients, ``FedMatch`` (``feddb``) ours on FedDB's full batches.
    Other authors' copies are in ``methods.ablations.fedmatch``.

    | hyperparameter | paper (-: not available) | released code | here |
    |---|---|---|---|
    | ``threshold`` of confidence | 0.85 | 0.75 | 0.75 |
    | ``lambda_s`` of labels | - | 10 | 10 |
    | lambda_i of the helpers' divergence, lambda_a of pseudo-labels | - | 0.01 | 0.01 |
    | ``lambda_l1`` of psi | - | 1e-5 with labels at the server, else 1e-4 | 1e-5 |
    | ``lambda_l2`` of sigma - psi | - | 10 | 10 |
    | ``helpers`` H, ``helper_every`` | - | 2, 10 | 2, 10 |
    | initial psi | - | 0.2 sigma | 0.2 sigma |
    | decomposed tensors | - | all weights: there are no biases or norms | weights; all others belong to sigma |
    | ``l1_threshold``: smaller psi is 0 in tests and comparisons | - | 1e-5 (clients' labels: 5e-6) | 1e-5 |
    | ``delta``: smaller changes are not sent | - | 1e-5 (clients' labels: 5e-5) | 1e-5 |
    | download | - | what changed (clients' labels) | everything (``OwnEntriesKept``: what changed) |
    | ``lr``, ``momentum``, ``weight_decay`` | - | 1e-3, 0, 0 | 0.03, 0.9, 5e-4 |
    | ``clip_norm`` | - | none | null: clipping drowns pseudo-labels in ``lambda_l2`` |
    | ``batches``, ``batch_size``, ``local_epochs`` | - | in order, 100 (clients' labels: 10), 1 | shuffled, 32, 5 |
    | ``server_batch_size``, ``server_epochs`` | - | 100, 1 | 10, 5 |
    | rate after validations without improvement | - | a third | ``lr_schedule``: no protocol here has validations |
    | ``server_momentum`` | - | none | 0 |
    | ``server_pretrain`` | - | a round starts at the server | 0 (``fedmatch_repo``: 1) |
    | batch norm | - | absent | scale and shift train with sigma; statistics depend on the network |
    | helpers' predictions | - | in every step | once per visit, in evaluation mode |
    | psi in the server's steps | - | cut at ``l1_threshold`` | as it is |

    Args:
        model: the network; its weights are decomposed in place.
        num_classes: number of classes.
        num_clients: registered clients.
        image_shape: channels, height and width of the noise image, or the length of a feature vector.
        helpers: number of helpers H; 0: none.
        helper_every: rounds between two uses of helpers.
        batches: ``shuffled``; ``full``: one step per epoch on all images; ``in_order``: the stored order, in round(n /
            batch_size) steps, where n is the client's number of labelled images, if any; its unlabelled images are then
            spread over as many steps.
        dpl: debias the model's own probabilities before the threshold and its vote (FedDB's DPL).
        clip_norm: see ``FedMethod``; applies to sigma and psi separately.
    """

    contract_args = {"lr": 3e-3, "lambda_s": 1.0, "lambda_l2": 0.01, "helper_every": 1}
    retired = {"lambda_i": LAMBDA_I, "lambda_a": LAMBDA_A}
    scopes = {
        **ServerMomentum.scopes,
        "noise": "local",
        "helper": "local",
        "helper_count": "local",
        "vectors": "server",
        "seen": "server",
    }
    views = {"labelled": {"x": "weak"}, "unlabelled": {"x": "test", "strong": "strong"}}
    noise: Tensor
    helper_count: Tensor
    vectors: Tensor
    """Each client's last answer to the noise image, ``[clients, C]``."""
    seen: Tensor
    """Which clients have answered, bool ``[clients]``."""

    sums: tuple[type[nn.Module], ...] = (_ConvNd, nn.Linear)
    """Kinds of layers whose weights are sums."""

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        num_clients: int,
        image_shape: Sequence[int],
        threshold: float = 0.75,
        lambda_s: float = 10.0,
        lambda_l1: float = 1e-5,
        lambda_l2: float = 10.0,
        l1_threshold: float = 1e-5,
        delta: float = 1e-5,
        helpers: int = 2,
        helper_every: int = 10,
        batches: Literal["shuffled", "full", "in_order"] = "shuffled",
        dpl: bool = False,
        batch_size: int = 32,
        clip_norm: float | None = None,
        server_momentum: float = 0.0,
        **base: Any,
    ) -> None:
        layers = [layer for layer in model.modules() if isinstance(layer, self.sums)]
        for layer in layers:
            sigma = layer.get_parameter("weight")
            if sigma.requires_grad:
                psi = self.first_psi(sigma.detach())
                parametrize.register_parametrization(layer, "weight", Additive(psi, l1_threshold))
        super().__init__(model, **base)
        self.automatic_optimization = False
        self.require_thresholds("threshold")
        self.require("from 1", helper_every=self.hparams.helper_every >= 1)
        self.psi_names = [n for n, _ in model.named_parameters() if n.endswith(".parametrizations.weight.0.psi")]
        size = sum(psi.numel() for psi in self.psi().values())
        slots = self.hparams.helpers if self.psi_names else 0
        self.helper = nn.ParameterList(nn.Parameter(torch.zeros(size), requires_grad=False) for _ in range(slots))
        self.register_buffer("helper_count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("noise", noise_image(image_shape))
        self.register_buffer("vectors", torch.zeros(num_clients, num_classes))
        self.register_buffer("seen", torch.zeros(num_clients, dtype=torch.bool))
        self.held_by_server: dict[str, Tensor] = {}

    def first_psi(self, sigma: Tensor) -> Tensor:
        """Return the initial psi for a part sigma, in the same shape."""
        return PSI_SCALE * sigma

    def psi(self) -> dict[str, nn.Parameter]:
        """Return the parts psi by their names in the network."""
        return {name: self.model.get_parameter(name) for name in self.psi_names}

    def sigma(self) -> dict[str, nn.Parameter]:
        """Return what labels train, by name: the parts sigma and all parameters that are neither psi nor frozen."""
        return {n: p for n, p in self.model.named_parameters() if n not in self.psi_names and p.requires_grad}

    # A step of each part.

    def configure_optimizers(self) -> Any:
        """Return one optimiser for sigma and one for psi."""
        return [self.make_optimizer(part.values()) for part in (self.sigma(), self.psi())]

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take a step of sigma on the labelled images, then one of psi on the unlabelled ones."""
        sigma_optimizer, psi_optimizer = cast(Any, self.optimizers())
        total = torch.zeros((), device=self.device)
        if "labelled" in batch:
            total = total + self.descend(sigma_optimizer, self.labelled_loss(batch["labelled"]))
        if "unlabelled" in batch:
            total = total + self.descend(psi_optimizer, self.unlabelled_loss(batch["unlabelled"]))
        self.log("loss", total)

    def labelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Loss of sigma: ``lambda_s CE``."""
        loss: Tensor = F.cross_entropy(wide(self(samples["x"])), samples["y"])
        self.log("loss_labelled", loss.detach())
        return loss * float(self.hparams.lambda_s)

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Loss of psi (see the class). Images that are not confident enter neither mean."""
        h, helpers = self.hparams, samples.get("helpers")
        logits = wide(self(samples["x"]))
        p = logits.detach().softmax(dim=1)
        p = debias(p) if h.dpl else p
        confident = p.amax(dim=1) >= h.threshold
        labels = agreed_labels(p, helpers)
        self.report_pseudo_labels(samples["index"], labels, confident)

        losses = F.cross_entropy(wide(self(samples["strong"])), labels, reduction="none")
        agreement = masked_mean(losses, confident)
        self.log("loss_agreement", agreement.detach())
        loss: Tensor = LAMBDA_A * agreement
        if helpers is not None:
            divergence = masked_mean(helper_divergence(logits, helpers), confident)
            self.log("loss_helpers", divergence.detach())
            loss = loss + LAMBDA_I * divergence
        parts = pairs(self.model)
        size = torch.stack([psi.abs().sum() for _, psi in parts]).sum()
        distance = torch.stack([(sigma.detach() - psi).square().sum() for sigma, psi in parts]).sum()
        self.log("psi_distance", distance.detach().sqrt())
        return loss + float(h.lambda_l1) * size + float(h.lambda_l2) * distance

    # A client's visit.

    def local_work(self, client: Site) -> LocalWork:
        """Train on the client's images; in a round with helpers, together with the helpers' predictions."""
        self.held_by_server = self.tensors("shared")
        streams = self.streams(client.data)
        if "unlabelled" in streams and self.helper_count:
            fields = streams["unlabelled"].fields
            streams["unlabelled"].fields = {**fields, "helpers": self.helper_predictions(client)}
        return [Pass(streams, self.steps(client.data))] * int(self.hparams.local_epochs)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """Return both streams, batched as ``batches`` says."""
        streams, steps = super().streams(data), self.steps(data)
        for stream in streams.values():
            if self.hparams.batches == "full":
                stream.batch_size = len(stream)
            elif steps:
                stream.shuffle, stream.cycle = False, True
        if steps and len(streams) == 2:
            streams["unlabelled"].batch_size = -(-len(data.unlabelled) // steps)
        return streams

    def steps(self, data: SiteData) -> int | None:
        """Steps per epoch with ``in_order``: round(n / batch_size), rounding half to even, at least 1."""
        if self.hparams.batches != "in_order":
            return None
        images = len(data.labelled) or len(data.unlabelled)
        return max(1, round(images / int(self.hparams.batch_size)))

    @torch.no_grad()
    def helper_predictions(self, client: Site) -> Tensor:
        """Predict all unlabelled images with the client's sigma and each helper's psi, ``[n, H, C]``."""
        self.eval()
        helpers = [unflat(slot, self.psi()) for slot in self.helper[: int(self.helper_count)]]
        predictions = []
        with self.autocast():
            for x in client.views("test", client.data.unlabelled, size=self.eval_batch):
                logits = [wide(functional_call(self.model, psi, (x,))) for psi in helpers]
                predictions.append(torch.stack(logits, dim=1).softmax(dim=2))
        return torch.cat(predictions)

    @torch.no_grad()
    def make_upload(self, client: Site) -> Upload | None:
        """Return the changed entries, and how the model that they make answers to the noise image."""
        upload = super().make_upload(client)
        if upload is None:
            return None
        weights = {f"model.{name}" for name, _ in self.model.named_parameters()} & upload.tensors.keys()
        sent = {}
        for name, value in upload.tensors.items():
            held = self.held_by_server[name]
            sent[name] = differs(self.compared(name, value), held, self.hparams.delta if name in weights else 0.0)
            upload.tensors[name] = torch.where(sent[name], value, held)
        upload.bytes = sparse_bytes(sent, upload.tensors)
        self.load_tensors({name: upload.tensors[name] for name in weights})
        self.eval()
        with self.autocast():
            upload.stats["outputs"] = self.predict(self.noise)[0]
        return upload

    def compared(self, name: str, value: Tensor) -> Tensor:
        """Return a tensor's entries as they are compared: those of psi up to ``l1_threshold`` are 0."""
        is_psi = name.removeprefix("model.") in self.psi_names
        return F.hardshrink(value, self.hparams.l1_threshold) if is_psi else value

    # The server.

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """Aggregate, and store the clients' answers."""
        super().aggregate(uploads)
        for upload in uploads:
            self.vectors[upload.visit.client] = upload.stats["outputs"]
            self.seen[upload.visit.client] = True

    def remember(self, uploads: Sequence[Upload]) -> dict[int, dict[str, Tensor]]:
        """Keep every client's psi, for the clients it will help."""
        if not len(self.helper):
            return {}
        return {upload.visit.client: {"psi": self.flat_psi(upload)} for upload in uploads}

    def flat_psi(self, upload: Upload) -> Tensor:
        """Return all entries of a client's psi as one vector."""
        return flat(upload.tensors[f"model.{name}"] for name in self.psi_names)

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """Send the shared tensors, and in a round with helpers their last psi to clients that took part before."""
        sent = super().broadcast(server, visit)
        if not len(self.helper) or (visit.round + 1) % self.hparams.helper_every:
            return sent
        chosen = nearest(server["vectors"], server["seen"], visit.client, len(self.helper))
        for slot, helper in enumerate(chosen):
            sent[f"helper.{slot}"] = self.memory[helper]["psi"]
        if chosen:
            sent["helper_count"] = torch.tensor(len(chosen), device=self.device)
        return sent

    def sent_bytes(self, sent: Mapping[str, Tensor], visit: Visit) -> int:
        """Count only the entries of a helper's psi above ``l1_threshold``."""
        helpers = {n: psi.abs() > self.hparams.l1_threshold for n, psi in sent.items() if n.startswith("helper.")}
        rest = {name: tensor for name, tensor in sent.items() if name not in helpers}
        return super().sent_bytes(rest, visit) + sparse_bytes(helpers, sent)

    def server_stream(self, data: SiteData) -> Stream:
        """Return the server's labelled images, in the order given by ``batches``."""
        stream = super().server_stream(data)
        stream.shuffle = self.hparams.batches != "in_order"
        return stream


class Additive(nn.Module):
    """``sigma + psi``; in evaluation mode, entries of psi with magnitude up to ``cut`` count as 0.

    Args:
        psi: the second part, in the shape of the first.
        cut: see above; training uses psi as it is.
    """

    def __init__(self, psi: Tensor, cut: float) -> None:
        super().__init__()
        self.psi, self.cut = nn.Parameter(psi), cut

    def forward(self, sigma: Tensor) -> Tensor:
        """Return the weight that the layer uses."""
        return sigma + (self.psi if self.training else F.hardshrink(self.psi, self.cut))


def pairs(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return sigma and psi of every decomposed weight, in module order."""
    weights = [module for module in model.modules() if isinstance(module, parametrize.ParametrizationList)]
    return [(weight.get_parameter("original"), weight[0].get_parameter("psi")) for weight in weights]


def agreed_labels(own: Tensor, helpers: Tensor | None) -> Tensor:
    """Classes with the most votes, int64 ``[B]``: one vote each of the model and every helper; lowest class in a tie.

    Args:
        own: the model's probabilities ``[B, C]``.
        helpers: the helpers' ``[B, H, C]``, or ``None``.
    """
    voters = own[:, None] if helpers is None else torch.cat([own[:, None], helpers], dim=1)
    votes = one_hot(voters.argmax(dim=2), own.shape[1]).sum(dim=1)
    return votes.argmax(dim=1)


def helper_divergence(logits: Tensor, helpers: Tensor) -> Tensor:
    """``1/H sum_j KL(p_j || p)`` per image, ``[B]``; the gradient flows through the logits ``[B, C]`` of p.

    Args:
        logits: the model's.
        helpers: the helpers' probabilities p_j ``[B, H, C]``.
    """
    logs = logits.log_softmax(dim=1)[:, None].expand_as(helpers)
    return F.kl_div(logs, helpers, reduction="none").sum(dim=2).mean(dim=1)


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
        count: how many; fewer if fewer have a vector. In a tie the lower id comes first.
    """
    if not seen[client]:
        return []
    distances = torch.linalg.vector_norm(vectors.double() - vectors[client].double(), dim=1).tolist()
    neighbours = [k for k, has_vector in enumerate(seen.tolist()) if has_vector and k != client]
    return sorted(neighbours, key=lambda k: (distances[k], k))[:count]


def differs(new: Tensor, old: Tensor, delta: float) -> Tensor:
    """Mark entries that are more than ``delta`` apart, or not a number, as bool in their shape."""
    return ~((new - old).abs() <= delta)


def sparse_bytes(sent: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> int:
    """Bytes of sparse updates: the sent values plus one bit per entry as a mask, or all values if that is smaller.

    A tensor of which nothing is sent costs nothing.

    Args:
        sent: by name, a bool mask of the entries that are sent.
        values: the tensors, by the same names or more.
    """
    total = 0
    for name, mask in sent.items():
        count, size = int(mask.count_nonzero()), values[name].element_size()
        total += min(count * size + -(-mask.numel() // 8), mask.numel() * size) if count else 0
    return total


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Flatten tensors to one vector, tensor by tensor in row-major order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflat(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert ``flat``: views of the vector with the names and shapes of ``like``."""
    parts = torch.split(vector, [tensor.numel() for tensor in like.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}

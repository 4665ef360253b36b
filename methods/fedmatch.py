"""FedMatch: weights in two parts, one for labels and one for unlabelled images, and helpers that vote on labels."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from datamodules.base import SiteData
from datamodules.common.errors import ConfigError
from datamodules.common.streams import SERVER
from methods.base import Batch, LocalWork, Pass, Site, Stream, Upload, Visit
from methods.parts import decomposition as parts
from methods.parts.dpl import debias
from methods.parts.labels_at_server import LabelsAtServer
from methods.parts.losses import masked_mean
from methods.parts.plateau import Plateau
from methods.parts.server_momentum import ServerMomentum, resting_copy
from methods.parts.static_norms import StaticNorms
from methods.parts.tensors import one_hot, wide

Batches = Literal["shuffled", "full", "in_order"]

FAITHFUL: dict[str, Any] = {
    "decompose": "weights",
    "psi_init": "scaled",
    "train_rest": True,
    "threshold": 0.75,
    "lambda_s": 10.0,
    "lambda_i": 0.01,
    "lambda_a": 0.01,
    "lambda_l1": 1e-5,
    "lambda_l2": 10.0,
    "helpers": 2,
    "l1_threshold": 1e-5,
    "delta": 1e-5,
    "download": "full",
    "batches": "shuffled",
    "batch_size": 32,
    "server_batch_size": 10,
    "server_epochs": 5,
    "server_pretrain": 0,
    "server_momentum": 0.0,
    "local_epochs": 5,
    "optimizer": "sgd",
    "lr": 0.03,
    "lr_schedule": "cosine",
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "reset_momentum": False,
}
ORIGINAL = {
    "batches": "in_order",
    "server_epochs": 1,
    "local_epochs": 1,
    "lr": 1e-3,
    "lr_schedule": "constant",
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "reset_momentum": True,
}
AT_CLIENTS = {"lambda_l1": 1e-4, "l1_threshold": 5e-6, "delta": 5e-5}
NO_HELP = {"helpers": 0, "lambda_i": 0.0, "lambda_l1": 0.0, "lambda_l2": 0.0}
SANE = {**FAITHFUL, **AT_CLIENTS, "threshold": 0.95, "batches": "full", "server_momentum": 0.5}
RECIPE = {**FAITHFUL, **ORIGINAL, **AT_CLIENTS, "download": "changed", "batch_size": 10}

PRESETS: dict[str, dict[str, Any]] = {
    "faithful": FAITHFUL,
    "fedcon_repo_inert": {**FAITHFUL, **NO_HELP, "decompose": "none", "lambda_s": 1.0},
    "fedmatch_repo": {**FAITHFUL, **ORIGINAL, "batch_size": 100, "server_batch_size": 100, "server_pretrain": 1},
    "sane": SANE,
    "semifl": {**SANE, **NO_HELP, "decompose": "convolutions", "psi_init": "independent", "train_rest": False},
    "original": RECIPE,
    "feddure_hparams": {**RECIPE, "optimizer": "adam", "lr": 5e-4},
}
INHERITED = (
    "batch_size",
    "server_batch_size",
    "server_epochs",
    "server_pretrain",
    "server_momentum",
    "local_epochs",
    "lr",
    "lr_schedule",
    "momentum",
    "nesterov",
    "weight_decay",
    "reset_momentum",
)
"""What the bases know by the same name."""


class FedMatch(LabelsAtServer, StaticNorms, ServerMomentum):
    """Inter-client consistency and disjoint learning (Jeong et al., ICLR 2021), labels at the server or at the clients.

    Every weight is a sum ``theta = sigma + psi``. Labels train sigma alone, with ``lambda_s CE(y, p(x))``. Unlabelled
    images u train psi alone, with ::

        lambda_i / H sum_j KL(p_j(u) || p(u)) + lambda_a CE(y_hat, p(strong(u)))
            + lambda_l1 sum |psi| + lambda_l2 sum (sigma - psi)^2

    where the first two terms are means over the images with ``max p(u) >= threshold``, p_j are the predictions of H
    helpers, and y_hat is the class with most votes of the model and its helpers (the lowest of several). A helper is
    the receiver's own sigma, as it was sent, with the last psi of another client. The server feeds one image of noise
    to every model that comes back; the helpers of a client are the clients whose outputs are nearest to its own. They
    come in every ``helper_every``-th round, to clients that took part before. Only entries are sent that differ by more
    than ``delta`` from what the receiver holds; psi is compared with its entries of at most ``l1_threshold`` as 0, and
    sent as it is. Where an upload leaves out an entry, the server's own stays, at the client, too. The server averages
    uniformly. Labels at the server train sigma there, as ``LabelsAtServer`` says.

    | hyperparameter | paper (-: not at hand) | released code | here |
    |---|---|---|---|
    | ``preset`` | - | - | ``faithful``: as the code, trained as the methods beside it; see below |
    | ``threshold`` of confidence | 0.85 | 0.75 | 0.75 (``sane``, ``semifl``: 0.95) |
    | ``lambda_s`` of labels | - | 10 | 10 (``fedcon_repo_inert``: 1) |
    | ``lambda_i`` of the helpers' divergence, ``lambda_a`` of pseudo-labels | - | 0.01 | 0.01 |
    | ``lambda_l1`` of psi | - | 1e-5 with labels at the server, else 1e-4 | as the code |
    | ``lambda_l2`` of sigma - psi | - | 10 | 10 |
    | ``helpers`` H, ``helper_every`` | - | 2, 10 | 2, 10 |
    | ``psi_init``, ``psi_scale`` | - | psi is 0.2 sigma | ``scaled``, 0.2 |
    | ``decompose``, ``train_rest`` | - | all weights: there are no biases or norms | ``weights``; the rest is sigma |
    | ``l1_threshold``: smaller psi is 0 in tests and comparisons | - | 1e-5 (clients' labels: 5e-6) | as the code |
    | ``delta``: smaller changes are not sent | - | 1e-5 (clients' labels: 5e-5) | as the code |
    | ``download`` | - | what changed (clients' labels) | ``full`` (``original``: ``changed``) |
    | ``lr``, ``momentum``, ``weight_decay`` | - | 1e-3, 0, 0 | 0.03, 0.9, 5e-4 (``original``: as the code) |
    | ``clip_norm`` | - | none | null: clipping drowns pseudo-labels in ``lambda_l2`` |
    | ``batches``, ``batch_size``, ``local_epochs`` | - | stored order, 100 (clients' labels: 10), 1 | 32, 5 |
    | ``server_batch_size``, ``server_epochs`` | - | 100, 1 | 10, 5 |
    | ``patience`` of the server's rate | - | 20 (clients' labels: 5, at the clients) | null: off |
    | ``server_momentum`` | - | none | 0 (``sane``, ``semifl``: 0.5) |
    | ``server_pretrain`` | - | a round begins at the server | 0 (``fedmatch_repo``: 1) |
    | batch norm | - | absent | its scale and shift train with sigma; statistics as the network has them |
    | helpers' predictions | - | in every step | once per visit, in evaluation mode |
    | psi in the server's steps | - | cut at ``l1_threshold`` | as it is |

    An argument of ``None`` has the value of the preset.

    Args:
        model: the network; its weights become sums in place.
        num_classes: number of classes.
        num_clients: registered clients.
        image_shape: channels, height and width of the noise image.
        preset: ``faithful``: the method on the network and optimiser of its neighbours, labels at the server.
            ``fedcon_repo_inert``: the reduced copy in FedCon's public code, whose clients never step: no psi, no
            helpers, and nothing of a client but batch-norm statistics moves. ``fedmatch_repo``: the released recipe
            with labels at the server. ``original``: the same with labels at the clients; ``feddure_hparams``: with
            Adam at 5e-4. ``sane``: labels at the clients, on the full batches of FedDB; ``semifl``: the copy in
            SemiFL's code, where only convolutions are sums, both parts start independently, and nothing else is ever
            trained.
        decompose: see ``decomposition.decompose``; with ``none`` there is no psi, and unlabelled images are looked at
            in training mode and train nothing.
        psi_init: likewise.
        psi_scale: likewise.
        train_rest: whether what is not decomposed trains with sigma; else it stays as it started.
        batches: ``shuffled``; ``full``: one step per epoch on all images; ``in_order``: the stored order, in
            round(n / batch_size) steps, where n counts the labelled images of a client that has some, whose unlabelled
            images are then spread over as many steps.
        labelled_view: view of labelled images.
        labelled_batch_size: labelled images per step; default: ``batch_size``.
        download: clients are sent the ``full`` model, or keep their own entries where the server's are within
            ``delta``.
        dpl: debias the model's own probabilities before the threshold and its vote (FedDB's DPL).
        dpl_eps: see ``dpl.debias``.
        dpl_on_helpers: debias the helpers' votes as well.
        optimizer: ``sgd`` or ``adam``, one for sigma and one for psi.
        patience: checks on the validation images without improvement, after which the server's rate falls to a third.
        clip_norm: see ``FedMethod``; for sigma and psi each.
    """

    contract_args = {"lr": 3e-3, "lambda_s": 1.0, "lambda_l2": 0.01, "helper_every": 1}
    scopes = {
        **ServerMomentum.scopes,
        "noise": "local",
        "helper": "local",
        "helper_count": "local",
        "server_weights": "local",
        "vectors": "server",
        "seen": "server",
        "plateau": "server",
    }
    views = {"labelled": {"x": "weak"}, "unlabelled": {"x": "test", "strong": "strong"}}
    noise: Tensor
    helper_count: Tensor
    server_weights: Tensor | None
    vectors: Tensor
    seen: Tensor

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        num_clients: int,
        image_shape: Sequence[int],
        preset: Literal[
            "faithful", "fedcon_repo_inert", "fedmatch_repo", "sane", "semifl", "original", "feddure_hparams"
        ] = "faithful",
        decompose: parts.Layers | None = None,
        psi_init: Literal["scaled", "independent"] | None = None,
        psi_scale: float = 0.2,
        train_rest: bool | None = None,
        threshold: float | None = None,
        lambda_s: float | None = None,
        lambda_i: float | None = None,
        lambda_a: float | None = None,
        lambda_l1: float | None = None,
        lambda_l2: float | None = None,
        helpers: int | None = None,
        helper_every: int = 10,
        l1_threshold: float | None = None,
        delta: float | None = None,
        download: Literal["full", "changed"] | None = None,
        batches: Batches | None = None,
        labelled_view: str = "weak",
        labelled_batch_size: int | None = None,
        dpl: bool = False,
        dpl_eps: float = 0.0,
        dpl_on_helpers: bool = False,
        patience: int | None = None,
        optimizer: Literal["sgd", "adam"] | None = None,
        batch_size: int | None = None,
        server_batch_size: int | None = None,
        server_epochs: int | None = None,
        server_pretrain: int | None = None,
        server_momentum: float | None = None,
        local_epochs: int | None = None,
        lr: float | None = None,
        lr_schedule: Literal["cosine", "constant"] | None = None,
        momentum: float | None = None,
        nesterov: bool | None = None,
        weight_decay: float | None = None,
        reset_momentum: bool | None = None,
        clip_norm: float | None = None,
        **base: Any,
    ) -> None:
        given = locals()
        values = {name: value if given[name] is None else given[name] for name, value in PRESETS[preset].items()}
        super().__init__(model, clip_norm=clip_norm, **{name: values[name] for name in INHERITED}, **base)
        self.hparams.update(values | {"image_shape": list(image_shape)})
        self.automatic_optimization = False
        self.views = {**self.views, "labelled": {"x": labelled_view}}
        h = self.hparams
        losses = ("lambda_s", "lambda_i", "lambda_a", "lambda_l1", "lambda_l2")
        rules = ("helpers", "l1_threshold", "delta", "dpl_eps")
        self.require("0 or more", **{name: h[name] >= 0 for name in (*losses, *rules)})
        self.require("1 or more", helper_every=helper_every >= 1)
        self.require_thresholds("threshold")
        self.require("1 or more, or null", patience=patience is None or patience >= 1)
        parts.decompose(self.model, h.decompose, h.psi_init, psi_scale, h.l1_threshold)
        self.velocity = resting_copy(self.model)
        self.psi_names = parts.psi_names(self.model)
        size = sum(psi.numel() for _, psi in parts.pairs(self.model))
        slots = [nn.Parameter(torch.zeros(size), requires_grad=False) for _ in range(h.helpers)]
        self.helper = nn.ParameterList(slots)
        self.register_buffer("helper_count", torch.zeros((), dtype=torch.int64))
        # With download=changed: what the server holds, beside the model that the client has made of it.
        beside = parts.flat(self.model.parameters()) if h.download == "changed" else None
        self.register_buffer("server_weights", beside)
        self.register_buffer("noise", noise_image(image_shape))
        self.register_buffer("vectors", torch.zeros(num_clients, num_classes))
        self.register_buffer("seen", torch.zeros(num_clients, dtype=torch.bool))
        self.plateau = None if patience is None else Plateau(patience, divide_by=3.0)
        self.uses_validation = patience is not None
        self.held_by_server: dict[str, Tensor] = {}
        self.site: Site | None = None

    # What is trained, and how.

    def psi(self) -> dict[str, nn.Parameter]:
        """The parts psi by name (in the network); empty where nothing is decomposed."""
        return {name: self.model.get_parameter(name) for name in self.psi_names}

    def sigma(self) -> dict[str, nn.Parameter]:
        """What labels train by name: the parts sigma, and with ``train_rest`` whatever is not decomposed."""
        ours = {id(one) for one, _ in parts.pairs(self.model)}
        named = {name: p for name, p in self.model.named_parameters() if name not in self.psi_names}
        return {name: p for name, p in named.items() if self.hparams.train_rest or id(p) in ours}

    def configure_optimizers(self) -> Any:
        """One optimiser for sigma and, where there is a psi, one for psi."""
        groups = [self.sigma(), self.psi()]
        return [self.make_optimizer(group.values()) for group in groups if group]

    def make_optimizer(self, parameters: Iterable[Tensor]) -> Optimizer:
        """An optimiser with the method's constants."""
        h, rate = self.hparams, self.learning_rate()
        if h.optimizer == "adam":
            # Adam wants to be told that a CUDA graph may hold its steps.
            return torch.optim.Adam(list(parameters), rate, weight_decay=h.weight_decay, fused=True, capturable=True)
        return torch.optim.SGD(
            list(parameters), rate, h.momentum, weight_decay=h.weight_decay, nesterov=h.nesterov, fused=True
        )

    def learning_rate(self) -> float:
        """The schedule's rate; at the server what the plateau rule left of it."""
        rate = super().learning_rate()
        return rate * self.plateau.factor() if self.plateau is not None and self.visit.client == SERVER else rate

    # A step.

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """A step of sigma on the labelled images, then one of psi on the unlabelled ones."""
        sigma, *psi = self.every_optimizer()
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            part = self.labelled_loss(batch["labelled"])
            self.descend(sigma, part, self.sigma())
            loss = loss + part.detach()
        if "unlabelled" in batch and psi:
            part = self.unlabelled_loss(batch["unlabelled"])
            self.descend(psi[0], part, self.psi())
            loss = loss + part.detach()
        elif "unlabelled" in batch:
            self.look(batch["unlabelled"])
        self.log("loss", loss)

    def every_optimizer(self) -> list[Any]:
        """What ``configure_optimizers`` made."""
        made = self.optimizers()
        return list(made) if isinstance(made, (list, tuple)) else [made]

    def descend(self, optimizer: Any, loss: Tensor, parameters: Mapping[str, nn.Parameter]) -> None:
        """One step of these parameters alone down the loss."""
        optimizer.zero_grad()
        self.manual_backward(loss, inputs=list(parameters.values()))
        self.configure_gradient_clipping(optimizer)
        optimizer.step()
        torch.clear_autocast_cache()  # it holds copies of parameters that have just changed

    def labelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """``lambda_s CE``."""
        loss: Tensor = F.cross_entropy(wide(self(samples["x"])), samples["y"])
        self.log("loss_labelled", loss.detach())
        return loss * float(self.hparams.lambda_s)

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """What psi minimises; see the class. Images that are not confident count in no term."""
        h, helpers = self.hparams, samples.get("helpers")
        logits = wide(self(samples["x"]))
        own = logits.detach().softmax(dim=1)
        votes = debias(own, h.dpl_eps) if h.dpl else own
        confident = votes.amax(dim=1) >= h.threshold
        labels = agreed_labels(votes, self.helper_votes(helpers))
        if self.site is not None:
            self.site.report_pseudo_labels(samples["index"], labels, confident)
        losses = F.cross_entropy(wide(self(samples["strong"])), labels, reduction="none")
        loss: Tensor = h.lambda_a * masked_mean(losses, confident)
        self.log("loss_agreement", masked_mean(losses.detach(), confident))
        if helpers is not None:
            divergence = masked_mean(helper_divergence(logits, helpers), confident)
            self.log("loss_helpers", divergence.detach())
            loss = loss + h.lambda_i * divergence
        size, distance = psi_penalties(parts.pairs(self.model))
        self.log("psi_distance", distance.detach().sqrt())
        return loss + float(h.lambda_l1) * size + float(h.lambda_l2) * distance

    def helper_votes(self, helpers: Tensor | None) -> Tensor | None:
        """Probabilities ``[B, H, C]`` that the helpers vote by."""
        if helpers is None or not (self.hparams.dpl and self.hparams.dpl_on_helpers):
            return helpers
        return torch.stack([debias(one, self.hparams.dpl_eps) for one in helpers.unbind(1)], dim=1)

    @torch.no_grad()
    def look(self, samples: Mapping[str, Tensor]) -> None:
        """Forward passes in training mode and nothing else: norms that keep running statistics move them."""
        for view in ("x", "strong"):
            self(samples[view])

    # A visit.

    def local_work(self, client: Site) -> LocalWork:
        """The client's images; in a round with helpers, their predictions come with the unlabelled ones."""
        self.site, self.held_by_server = client, self.tensors("shared")
        if self.server_weights is not None:
            self.held_by_server |= self.weights_from(self.server_weights.clone())
        streams, steps = self.streams(client.data), self.steps(client.data)
        if "unlabelled" in streams:
            predictions = self.helper_predictions(client)
            if predictions is not None:
                streams["unlabelled"].fields = {**streams["unlabelled"].fields, "helpers": predictions}
        return [Pass(streams, steps)] * int(self.hparams.local_epochs)

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """Both streams, in batches as ``batches`` says."""
        h, streams = self.hparams, super().streams(data)
        if "labelled" in streams:
            streams["labelled"].batch_size = h.labelled_batch_size or h.batch_size
        if "unlabelled" in streams:
            streams["unlabelled"].fields = {"index": data.unlabelled}
        for stream in streams.values():
            if h.batches == "full":
                stream.batch_size = len(stream)
            elif h.batches == "in_order":
                stream.shuffle, stream.cycle = False, True
        steps = self.steps(data)
        if steps and len(streams) == 2:
            streams["unlabelled"].batch_size = -(-len(data.unlabelled) // steps)
        return streams

    def steps(self, data: SiteData) -> int | None:
        """Steps per epoch of ``in_order``: round(n / batch), halves to even, at least 1."""
        if self.hparams.batches != "in_order":
            return None
        labelled = len(data.labelled)
        size = int(self.hparams.labelled_batch_size or self.hparams.batch_size)
        passes = labelled / size if labelled else len(data.unlabelled) / int(self.hparams.batch_size)
        return max(1, round(passes))

    @torch.no_grad()
    def helper_predictions(self, client: Site) -> Tensor | None:
        """Probabilities ``[n, H, C]`` of the helpers that were sent on all unlabelled images; ``None`` without any."""
        count = int(self.helper_count)
        if not count:
            return None
        self.eval()
        theirs = [parts.unflat(one.detach(), self.psi()) for one in self.helper[:count]]
        made = []
        with self.autocast():
            for x in client.views("test", client.data.unlabelled):
                logits = [wide(functional_call(self.model, psi, (x,))) for psi in theirs]
                made.append(torch.stack(logits, dim=1).softmax(dim=2))
        return torch.cat(made)

    @torch.no_grad()
    def make_upload(self, client: Site) -> Upload | None:
        """The entries that changed, and what the model that the server gets says to the noise image."""
        upload = super().make_upload(client)
        if upload is None:
            return None
        weights = {f"model.{name}" for name, _ in self.model.named_parameters()}
        masks, sizes = [], []
        for name, value in upload.tensors.items():
            delta = self.hparams.delta if name in weights else 0.0
            upload.tensors[name], sent = parts.update(value, self.held_by_server[name], delta, self.cut(name))
            masks.append(sent)
            sizes.append(value.element_size())
        upload.bytes = parts.sparse_bytes(masks, sizes)
        self.load_tensors({name: upload.tensors[name] for name in weights})
        self.eval()
        with self.autocast():
            upload.stats["outputs"] = self.predict(self.noise)[0]
        return upload

    # The server.

    def aggregate(self, uploads: Sequence[Upload]) -> None:
        """The uniform mean, and where the clients' models lie."""
        super().aggregate(uploads)
        for upload in uploads:
            self.vectors[upload.visit.client] = upload.stats["outputs"]
            self.seen[upload.visit.client] = True

    def remember(self, uploads: Sequence[Upload]) -> dict[int, dict[str, Tensor]]:
        """The psi of every client, for those whom it will help, and its sigma where only changes are downloaded."""
        changes = self.hparams.download == "changed"
        kept = {"psi": self.psi_names} if self.psi_names and (changes or self.hparams.helpers) else {}
        if changes:
            kept["sigma"] = self.whole_names()
        if not kept:
            return {}
        return {
            upload.visit.client: {
                part: parts.flat(upload.tensors[f"model.{name}"] for name in names) for part, names in kept.items()
            }
            for upload in uploads
        }

    def whole_names(self) -> list[str]:
        """Names of the network's parameters beside psi."""
        return [name for name, _ in self.model.named_parameters() if name not in self.psi_names]

    def broadcast(self, server: Mapping[str, Tensor], visit: Visit) -> dict[str, Tensor]:
        """The shared tensors, and in a round with helpers the psi of the clients that answer most alike."""
        sent = super().broadcast(server, visit)
        if self.hparams.download == "changed":
            sent["server_weights"] = parts.flat(sent[f"model.{name}"] for name, _ in self.model.named_parameters())
            merged = self.merged(sent["server_weights"], visit.client)
            sent |= {name: value for name, (value, _) in merged.items()}
        chosen = self.choose_helpers(server, visit)
        for slot, helper in enumerate(chosen):
            sent[f"helper.{slot}"] = self.memory[helper]["psi"]
        if chosen:
            sent["helper_count"] = torch.tensor(len(chosen), device=self.device)
        return sent

    def choose_helpers(self, server: Mapping[str, Tensor], visit: Visit) -> list[int]:
        """Clients whose psi the visit is sent; none in most rounds, or where nothing is known of the client."""
        h = self.hparams
        if not h.helpers or not self.psi_names or (visit.round + 1) % h.helper_every:
            return []
        return nearest(server["vectors"], server["seen"], visit.client, h.helpers)

    def merged(self, server_weights: Tensor, client: int) -> dict[str, tuple[Tensor, Tensor]]:
        """What the client makes of the server's weights, by name, and which of their entries it takes: those more than
        ``delta`` from its own. Nothing if it has none of its own.
        """
        new = self.weights_from(server_weights)
        kept = self.kept(client).items()
        return {name: parts.update(new[name], old, self.hparams.delta, self.cut(name)) for name, old in kept}

    def sent_bytes(self, sent: Mapping[str, Tensor], visit: Visit) -> int:
        """Of a helper the entries above ``l1_threshold``; of the model, with ``download=changed``, what changed."""
        masks, sizes, dense = [], [], 0
        changed = self.hparams.download == "changed"
        merged = self.merged(sent["server_weights"], visit.client) if changed else {}
        for name, tensor in sent.items():
            size = tensor.element_size()
            if name in merged:
                masks.append(merged[name][1])
                sizes.append(size)
            elif name.startswith("helper."):
                masks.append(tensor.abs() > self.hparams.l1_threshold)
                sizes.append(size)
            elif name != "server_weights":  # stands for the entries that do not travel
                dense += tensor.numel() * size
        return dense + parts.sparse_bytes(masks, sizes)

    def kept(self, client: int) -> dict[str, Tensor]:
        """The client's own weights, by name: those of its last upload, if it has made one."""
        found: dict[str, Tensor] = {}
        if client in self.memory:
            for part, names in (("psi", self.psi_names), ("sigma", self.whole_names())):
                like = {f"model.{name}": self.model.get_parameter(name) for name in names}
                found |= parts.unflat(self.memory[client][part], like) if names else {}
        return found

    def weights_from(self, vector: Tensor) -> dict[str, Tensor]:
        """The network's parameters in a vector of all their entries, by the names that they have in messages."""
        return parts.unflat(vector, {f"model.{name}": value for name, value in self.model.named_parameters()})

    def cut(self, name: str) -> float:
        """Size up to which entries of a registered tensor are compared as 0: ``l1_threshold`` of a part psi."""
        return float(self.hparams.l1_threshold) if name.removeprefix("model.") in self.psi_names else 0.0

    def server_stream(self, data: SiteData) -> Stream:
        """The server's labelled images, in the order that ``batches`` says."""
        stream = super().server_stream(data)
        stream.shuffle = self.hparams.batches != "in_order"
        return stream

    def server_step(self, server: Site) -> None:
        """Labels train sigma, where the server has any; then the plateau rule looks at the validation images."""
        super().server_step(server)
        if self.plateau is not None and len(server.data.labelled):
            self.plateau.note(self.validation_loss(server))

    @torch.no_grad()
    def validation_loss(self, server: Site) -> Tensor:
        """Mean cross-entropy on the images that are held out for it.

        Raises:
            ConfigError: there are none.
        """
        index, labels = server.data.validation, server.data.validation_labels
        if index is None or labels is None:
            raise ConfigError("patience follows the loss on validation images: hold some out with data.validation=2000")
        self.eval()
        with self.autocast():
            logits = torch.cat([wide(self(x)) for x in server.views("test", index, "validate")])
        return F.cross_entropy(logits, labels)


def noise_image(shape: Sequence[int]) -> Tensor:
    """The image of noise ``[1, C, H, W]`` that tells models apart: normal with mean and deviation 125, without what is
    beyond two deviations, clipped to [0, 255], over 255 (released code); always the same.
    """
    noise = torch.empty(1, *shape)
    generator = torch.Generator().manual_seed(0)
    nn.init.trunc_normal_(noise, mean=125.0, std=125.0, a=-125.0, b=375.0, generator=generator)
    return noise.clamp_(0.0, 255.0) / 255.0


def nearest(vectors: Tensor, seen: Tensor, client: int, count: int) -> list[int]:
    """The ``count`` clients nearest to one of them, by the Euclidean distance of their vectors, nearest first.

    Args:
        vectors: ``[clients, C]``.
        seen: which rows hold a vector, bool ``[clients]``.
        client: the one; it is not among the result, which is empty if it has no vector itself.
        count: fewer come back if fewer are known. Of clients equally far away the lower id comes first.
    """
    known = seen.tolist()
    if not known[client]:
        return []
    distances = torch.linalg.vector_norm(vectors.double() - vectors[client].double(), dim=1).tolist()
    others = [k for k, is_known in enumerate(known) if is_known and k != client]
    return sorted(others, key=lambda k: (distances[k], k))[:count]


def agreed_labels(own: Tensor, helpers: Tensor | None) -> Tensor:
    """Classes with most votes, int64 ``[B]``: one vote of the model, one of each helper, the lowest class of several.

    Args:
        own: the model's probabilities ``[B, C]``.
        helpers: the helpers' ``[B, H, C]``, or ``None``.
    """
    everyone = own[:, None] if helpers is None else torch.cat([own[:, None], helpers], dim=1)
    votes = one_hot(everyone.argmax(dim=2), own.shape[1]).sum(dim=1)
    return votes.argmax(dim=1)


def helper_divergence(logits: Tensor, helpers: Tensor) -> Tensor:
    """``1/H sum_j KL(p_j || p)`` per image, ``[B]``; the gradient flows through the logits ``[B, C]`` of p.

    Args:
        logits: the model's.
        helpers: the helpers' probabilities p_j ``[B, H, C]``.
    """
    target, logs = helpers.detach(), logits.log_softmax(dim=1)[:, None]
    divergences: Tensor = (torch.special.xlogy(target, target) - target * logs).sum(dim=2)
    return divergences.mean(dim=1)


def psi_penalties(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """``sum |psi|`` and ``sum (sigma - psi)^2`` over all entries of all pairs (sigma, psi)."""
    size = torch.stack([psi.abs().sum() for _, psi in pairs]).sum()
    return size, torch.stack([(sigma.detach() - psi).square().sum() for sigma, psi in pairs]).sum()

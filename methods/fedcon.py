"""FedCon: contrastive learning without negatives at the clients, labels and a consistency term at the server."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from methods.base import Batch, LocalWork, Pass, Site, StepNumber
from methods.parts.server import LabelsAtServer, ServerMomentum
from methods.parts.tensors import divergence, ema_update, exponential_ramp, wide


class FedCon(LabelsAtServer, ServerMomentum):
    """Federated contrastive learning with a consistency term (Long et al., 2021, arXiv 2109.04533).

    Only the backbone is exchanged, with its batch-norm statistics. A client learns without labels or pseudo-labels,
    like BYOL: with its online encoder f (the backbone), a predictor h and a target encoder f', a moving average of f,
    ::

        L = D(h(f(x1)), f'(x2)) / 2 + D(h(f(x2)), f'(x1)) / 2,    D(p, z) = -mean cos(p, z)

    for two views of the same kind, without a gradient through f'. h and f' stay at the client. The server keeps the
    classifier and trains it together with the averaged backbone (teacher t). It compares t with a student s, without a
    gradient through s: ::

        L = (CE(t(x1), y) + CE(t(x2), y)) / 2 + w(r) (KL(s(x2) || t(x1)) + KL(s(x1) || t(x2))) / 2

    The rows of (FL)2 (NeurIPS 2024, Table 1) were made with this method's public PyTorch code after unpublished
    changes. The column "paper" is what (FL)2 reports of them (Table 4), and the defaults follow that table. The recipe
    of the code itself is the row ``fedcon_repo`` of the suite ``fl2`` (``methods.ablations.fedcon.ReleasedFedCon``).

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | the student s | not given | t itself; an average of t is kept but unused | t (``EMAStudent``: the average) |
    | ``ramp_rounds`` of w(r) | not given | 100, as exp(-5 (1 - r/100)^2) | 100 |
    | ``target_decay`` of f' | not given | 0.999 after every step | 0.999 |
    | ``projector_width`` of h | not given | 12288, with batch norm and ReLU | 12288 |
    | optimiser of the clients | SGD | LARS without momentum, decay 1.5e-6 | SGD (``ReleasedFedCon``: LARS) |
    | ``lr`` | 0.03 | 0.0117; a warm-up of ten epochs restarts in every round | 0.03, no warm-up |
    | ``batch_size``, ``local_epochs`` | 32, 5 | 50, 1; incomplete batches are dropped | 32, 5; all batches |
    | ``server_lr``, ``server_sgd_momentum`` | 0.03, 0.9 | 0.01, 0.5, new in every round | 0.03, 0.9, new as well |
    | ``server_batch_size``, ``server_epochs`` | 10, 5 | 10, 1 | 10, 5 |
    | ``lr_schedule`` | cosine | constant | ``cosine`` |
    | ``clip_norm`` of gradients | not given | none | 1 |
    | ``server_momentum`` of the average | 0.5 in a row for all methods | none | 0 |
    | ``server_pretrain``: the round starts at the server | not given | yes; tested before the clients train | 1 |
    | ``reset_momentum`` | not given | every optimiser is new in every round | true |
    | statistics of batch norm | not given | running ones, averaged with the weights | depends on the network |

    Args:
        model: the network.
        server_lr: learning rate of the server; also follows ``lr_schedule``.
        server_sgd_momentum: momentum of the server's optimiser (``server_momentum`` is that of the aggregation).
        server_nesterov: Nesterov momentum of the server's optimiser.
        server_weight_decay: weight decay of the server's optimiser.
        batch_size: images per step of a client.
        min_batch: batch norm in h needs two images.
    """

    contract_args = {"projector_width": 64}
    needs_labels = True  # the clients use none
    scopes = {**ServerMomentum.scopes, "model.head": "server", "projector": "personal", "target": "personal"}
    views = {"labelled": {"x": "weak", "x2": "weak"}, "unlabelled": {"x": "weak", "x2": "weak"}}

    ramp = StepNumber()  # w(r)

    def __init__(
        self,
        model: nn.Module,
        ramp_rounds: int = 100,
        target_decay: float = 0.999,
        projector_width: int = 12288,
        server_lr: float = 0.03,
        server_sgd_momentum: float = 0.9,
        server_nesterov: bool = True,
        server_weight_decay: float = 5e-4,
        batch_size: int = 32,
        min_batch: int = 2,
        server_momentum: float = 0.0,
        server_pretrain: int = 1,
        reset_momentum: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.projector = predictor(self.model.feature_dim, self.hparams.projector_width)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.target.head = nn.Identity()

    # At a client.

    def local_work(self, client: Site) -> LocalWork:
        """Train on all images, in two views; the first backbone received initialises the target encoder."""
        streams = self.streams(client.data)
        streams.pop("labelled", None)
        if client.visit.first:
            sent = {name: value for name, value in self.model.state_dict().items() if not name.startswith("head.")}
            self.target.load_state_dict(sent)
        return [Pass(streams)] * int(self.hparams.local_epochs)

    def client_loss(self, samples: dict[str, Tensor]) -> Tensor:
        """``D(h(f(x1)), f'(x2)) / 2 + D(h(f(x2)), f'(x1)) / 2``, between -1 and 1."""
        online = [wide(self.projector(self.model.features(samples[view]))) for view in ("x", "x2")]
        with torch.no_grad():
            target = [wide(self.target.features(samples[view])) for view in ("x", "x2")]
        return 0.5 * dissimilarity(online[0], target[1]) + 0.5 * dissimilarity(online[1], target[0])

    def client_optimizer(self) -> Any:
        """Return SGD over backbone and predictor with the clients' hyperparameters."""
        return self.make_optimizer(self.learners())

    def learners(self) -> list[nn.Parameter]:
        """Return what a client trains: backbone and predictor."""
        return [*self.backbone(), *self.projector.parameters()]

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Update f' towards f."""
        if "unlabelled" in batch:
            decay = torch.full((), self.hparams.target_decay, dtype=torch.float64, device=self.device)
            ema_update(self.target.parameters(), self.backbone(), decay)

    def backbone(self) -> list[nn.Parameter]:
        """Return the network's parameters without the classifier's."""
        return [p for name, p in self.model.named_parameters() if not name.startswith("head.")]

    # At the server.

    def server_round(self) -> int:
        """The round that the server's visit starts: it runs after the clients of the previous round."""
        return 0 if self.visit.before_first_round else self.visit.round + 1

    def server_loss(self, samples: dict[str, Tensor]) -> Tensor:
        """Cross-entropy and consistency over two views."""
        teacher = [wide(self.model(samples[view])) for view in ("x", "x2")]
        with torch.no_grad():
            student = [wide(self.student_network()(samples[view])) for view in ("x", "x2")]
        classes = 0.5 * F.cross_entropy(teacher[0], samples["y"]) + 0.5 * F.cross_entropy(teacher[1], samples["y"])
        first, second = divergence(student[1], teacher[0]).mean(), divergence(student[0], teacher[1]).mean()
        consistency = 0.5 * first + 0.5 * second
        self.log("loss_consistency", consistency.detach())
        return classes + self.ramp * consistency

    def student_network(self) -> nn.Module:
        """Return s: the teacher itself (released code)."""
        return self.model

    def server_optimizer(self) -> Optimizer:
        """Return SGD over backbone and classifier with the server's hyperparameters.

        The server's visit at the end of a round belongs to the next one (``server_round``). Its cosine lags that
        round's clients by one round, so that the last step still has a rate above 0.
        """
        h = self.hparams
        return torch.optim.SGD(
            self.model.parameters(),
            self.scheduled(h.server_lr),
            h.server_sgd_momentum,
            weight_decay=h.server_weight_decay,
            nesterov=h.server_nesterov,
            fused=True,
        )

    # Who of the two it is.

    def configure_optimizers(self) -> Any:
        """Return the optimiser of the server or of a client."""
        return self.server_optimizer() if self.visit.at_server else self.client_optimizer()

    def on_train_start(self) -> None:
        """Set w(r) for the server's round."""
        self.ramp = exponential_ramp(self.server_round(), self.hparams.ramp_rounds)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the server's loss on labelled images, the clients' loss on unlabelled ones."""
        if "labelled" in batch:
            return self.server_loss(batch["labelled"])
        return self.client_loss(batch["unlabelled"])


def predictor(features: int, width: int) -> nn.Sequential:
    """h: linear, batch norm, ReLU, linear; ``features`` inputs and outputs."""
    return nn.Sequential(nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, features))


def dissimilarity(prediction: Tensor, target: Tensor) -> Tensor:
    """``-mean cos(p, z)`` over the rows of two matrices ``[B, d]``; no gradient through the second."""
    return -F.cosine_similarity(prediction, target.detach(), dim=1).mean()

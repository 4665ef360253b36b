"""FedDB: debiased pseudo-labels at the clients, debiased aggregation at the server."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.base import Batch, Site, Stream, Upload
from methods.fixmatch import FixMatch
from methods.parts.dpl import app_u, app_u_momentum

ITERATIONS = 100


class FedDB(FixMatch):
    """Federated debiasing (Zhu et al., IJCAI 2024): DPL (Algorithm 1) and DMA (Algorithm 2) around FixMatch.

    Once per round a client labels its unlabelled images with probabilities divided by their average, the APP-U, and
    takes five full-batch steps on its labels and on what passes the threshold. The APP-U follows the training; the
    server weighs the models so that the mean of these averages is as uniform as possible, and takes a momentum step.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``dpl``, ``dpl_eps`` (see ``FixMatch``, as what is not listed) | on, none | on, none | true, 0 |
    | ``dma`` | root of the squared distance, step 1 | mean squared error, Nesterov step, decay 0.9 | ``code`` |
    | ``gamma``, ``lambda_u`` | symbols | 0.5, 1 | 0.5, 1 |
    | ``appu_momentum_on`` | all images | confident ones, before each step | ``confident`` |
    | ``threshold`` | 0.95 | 0.95, inclusive | 0.95 |
    | ``unsup_norm`` | all images | confident ones | ``confident`` |
    | ``full_batch``, ``labelled_only_batch`` | all data at once | so; without confident images 64 | as the code |
    | ``empty_client`` | silent | all kept | ``keep`` |
    | ``pl_time``, ``pl_batch``, ``pl_shuffle`` | round start | round start, 250, no | as the code |
    | ``server_momentum`` | none (Eq. 17) | 0.5 | 0.5 |
    | ``lr``, ``lr_schedule`` | 0.03 | 0.03, cosine over the rounds | as the code |
    | ``nesterov``, ``weight_decay``, ``clip_norm`` | not given | yes, 5e-4, 1 | as the code |
    | ``reset_momentum`` | not given | one set of buffers per client, kept | false |
    | evaluation | not given | statistics of test batches of 250 | ``eval_batch`` 250; the network decides |
    """

    scenario = "all_clients"
    eval_batch = 250
    scopes = {**FixMatch.scopes, "app_u": "local"}
    app_u: Tensor

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        dma: Literal["code", "paper", "off"] = "code",
        gamma: float = 0.5,
        appu_momentum_on: Literal["confident", "all"] = "confident",
        dpl: bool = True,
        full_batch: bool = True,
        labelled_only_batch: int | None = 64,
        pl_batch: int = 250,
        **base: Any,
    ) -> None:
        super().__init__(
            model, dpl=dpl, full_batch=full_batch, labelled_only_batch=labelled_only_batch, pl_batch=pl_batch, **base
        )
        self.require("0 to 1", gamma=0 <= gamma <= 1)
        self.require("round_start, where dma is on", pl_time=dma == "off" or self.hparams.pl_time == "round_start")
        self.require("uniform, where dma weighs", aggregation=dma == "off" or self.hparams.aggregation == "uniform")
        self.register_buffer("app_u", torch.full((num_classes,), 1.0 / num_classes))

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """FixMatch's streams, and weak views of the images that the APP-U follows."""
        streams = super().visit_streams(client)
        trains = any(stream.usable for stream in streams.values())
        if self.hparams.dma != "off" and trains:
            confident = self.hparams.appu_momentum_on == "confident" and "unlabelled" in streams
            index = streams["unlabelled"].index if confident else client.data.unlabelled
            streams["app_u"] = self.fixed(index, {"weak": "weak"})
            streams["app_u"].cycle = True
        return streams

    def probabilities(self, client: Site, index: Tensor) -> Tensor:
        """See ``FixMatch``; the APP-U starts as the average over all unlabelled images."""
        probabilities = super().probabilities(client, index)
        self.app_u.copy_(app_u(probabilities))
        return probabilities

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Move the APP-U towards the predictions in training mode, then FixMatch's loss (Algorithm 3)."""
        if "app_u" in batch:
            with torch.no_grad():
                mean = app_u(self.predict(batch["app_u"]["weak"]))
            self.app_u.copy_(app_u_momentum(self.app_u, mean, self.hparams.gamma))
        return super().training_step(batch, batch_idx)

    def make_upload(self, client: Site) -> Upload | None:
        """The model and the final APP-U."""
        upload = super().make_upload(client)
        if upload is not None and self.hparams.dma != "off":
            upload.stats["app_u"] = self.app_u.clone()
            self.tally("app_u", self.app_u)
        return upload

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """DMA weights of the uploads."""
        if self.hparams.dma == "off":
            return super().weights(uploads)
        averages = torch.stack([upload.stats["app_u"] for upload in uploads])
        beta = model_weights(averages.cpu(), self.hparams.dma)
        self.tally("dma_weights", beta)
        self.tally("dma_change", (beta * len(beta) - 1.0).abs().max())
        weights: list[float] = beta.tolist()
        return weights


def model_weights(averages: Tensor, rule: Literal["code", "paper"] = "code") -> Tensor:
    """Debiased model aggregation: weights ``[M]`` that sum to 1, by 100 steps from uniform ones.

    Args:
        averages: APP-Us ``[M, C]`` of the clients, in client order, best on the CPU: a hundred steps on a few numbers
            each. A uniform one pulls in no direction.
        rule: ``code`` (released): each step is ``softmax(-0.71 beta - 1.9 g)`` with the gradient g of the mean squared
            error over classes between the mean APP-U and the uniform distribution; that is what a fresh SGD optimiser
            (rate 1, Nesterov momentum 0.9, weight decay 0.9) does. ``paper`` (Algorithm 2, Eq. 16 with the sum over
            classes): ``softmax(beta - g)`` with the gradient of the root of the sum of squares.
    """
    clients, classes = averages.shape
    beta = torch.full((clients,), 1.0 / clients, dtype=averages.dtype, device=averages.device)
    for _ in range(ITERATIONS):
        distance = beta @ averages - 1.0 / classes
        slope = averages @ distance
        if rule == "code":
            step = -0.71 * beta - 1.9 * (2.0 / classes) * slope
        else:
            step = beta - slope / (distance.square().sum() + 1e-12).sqrt()
        beta = step.softmax(dim=0)
    return beta

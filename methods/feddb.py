"""FedDB: debiased pseudo-labels at the clients, debiased aggregation at the server."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from methods.base import Batch, Site, Stream, Upload
from methods.fixmatch import FixMatch, has_batches
from methods.parts.tensors import app_u

ITERATIONS = 100


class FedDB(FixMatch):
    """Federated debiasing (Zhu et al., IJCAI 2024): DPL (Algorithm 1) and DMA (Algorithm 2) around FixMatch.

    Once per round a client labels its unlabelled images with probabilities divided by their average (the APP-U), then
    takes five full-batch steps on its labels and on the pseudo-labels that pass the threshold. The APP-U is updated
    during training. The server weights the models so that the weighted mean of the APP-Us is as uniform as possible,
    and takes a momentum step.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``dpl`` | on | on; no guard against an average of 0 | true |
    | ``aggregation``: DMA | root of the squared distance | mean squared error, Nesterov step, decay 0.9 | ``dma`` |
    | ``gamma``, ``lambda_u`` | symbols | 0.5, 1 | 0.5, 1 |
    | images that update the APP-U | all images | confident ones, before each step | as released |
    | ``threshold`` | 0.95 | 0.95, inclusive | 0.95 |
    | pseudo-label loss is a mean over | all images | confident ones | as released |
    | ``full_batch`` | all data at once | the same; a client without confident images in batches of 64 | as released |
    | a client without confident images | not given | trains on its labels, stays in the average | as released |
    | labels | round start | round start, images in stored order, 250 at once | as released |
    | ``server_momentum`` | none (Eq. 17) | 0.5 | 0.5 |
    | ``lr``, ``lr_schedule`` | 0.03 | 0.03, cosine over the rounds | as released |
    | ``nesterov``, ``weight_decay``, ``clip_norm`` | not given | yes, 5e-4, 1 | as released |
    | ``reset_momentum`` | not given | one set of buffers per client, kept | false |
    | evaluation | not given | statistics of test batches of 250 | ``eval_batch`` 250; the network decides |

    Algorithm 3 as printed is the ablation ``methods.ablations.feddb.AllImages``.

    Args:
        model: the network.
        num_classes: number of classes.
        aggregation: ``dma``: weights from ``model_weights``, as released; ``dma_written``: by Algorithm 2 as printed;
            ``uniform``: no DMA.
        gamma: decay of the APP-U per step.
        dpl: see ``FixMatch``.
        full_batch: see ``FixMatch``.
    """

    scenario = "all_clients"
    eval_batch = 250
    scopes = {**FixMatch.scopes, "app_u": "local"}
    app_u: Tensor

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        aggregation: Literal["dma", "dma_written", "uniform"] = "dma",
        gamma: float = 0.5,
        dpl: bool = True,
        full_batch: bool = True,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.uses_dma = self.hparams.aggregation != "uniform"
        self.register_buffer("app_u", torch.full((num_classes,), 1.0 / num_classes))

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """Add weak views of the images that update the APP-U to the streams of ``FixMatch``."""
        streams = super().visit_streams(client)
        if self.uses_dma and any(has_batches(streams, name) for name in streams):
            streams["app_u"] = self.fixed(self.app_u_images(client, streams), {"weak": "weak"})
            streams["app_u"].cycle = True
        return streams

    def app_u_images(self, client: Site, streams: Mapping[str, Stream]) -> Tensor:
        """Return the images that update the APP-U: the confident ones."""
        return streams["unlabelled"].index if "unlabelled" in streams else client.data.unlabelled

    def probabilities(self, client: Site, index: Tensor) -> Tensor:
        """See ``FixMatch``; initialises the APP-U as the average over all unlabelled images."""
        probabilities = super().probabilities(client, index)
        self.app_u.copy_(app_u(probabilities))
        return probabilities

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Update the APP-U from predictions in training mode; return the loss of ``FixMatch`` (Algorithm 3)."""
        if "app_u" in batch:
            with torch.no_grad():
                mean = self.predict(batch["app_u"]["weak"]).mean(dim=0)
            self.app_u.copy_(app_u_momentum(self.app_u, mean, self.hparams.gamma))
        return super().training_step(batch, batch_idx)

    def make_upload(self, client: Site) -> Upload | None:
        """Return the model and the final APP-U."""
        upload = super().make_upload(client)
        if upload is not None and self.uses_dma:
            upload.stats["app_u"] = self.app_u.clone()
            self.tally("app_u", self.app_u)
        return upload

    def weights(self, uploads: Sequence[Upload]) -> Sequence[float]:
        """Return the DMA weights of the uploads."""
        if not self.uses_dma:
            return super().weights(uploads)
        averages = torch.stack([upload.stats["app_u"] for upload in uploads])
        beta = model_weights(averages.cpu(), as_written=self.hparams.aggregation == "dma_written")
        self.tally("dma_weights", beta)
        self.tally("dma_change", (beta * len(beta) - 1.0).abs().max())
        return beta.tolist()


def app_u_momentum(average: Tensor, batch: Tensor, gamma: float = 0.5) -> Tensor:
    """``gamma * average + (1 - gamma) * batch``, ``[C]``: the APP-U's update during local training (Algorithm 3)."""
    return gamma * average + (1.0 - gamma) * batch


def model_weights(averages: Tensor, as_written: bool = False) -> Tensor:
    """Debiased model aggregation: weights ``[M]`` that sum to 1, found in 100 steps from uniform ones.

    Args:
        averages: APP-Us ``[M, C]`` of the clients, in client order; best on the CPU, since the steps are tiny. The
            gradient of a client with a uniform APP-U is 0.
        as_written: Algorithm 2, with the sum over classes of Eq. 16: each step is ``softmax(beta - g)``, where g is the
            gradient of the root of the sum of squares. Otherwise as released: ``softmax(-0.71 beta - 1.9 g)``, where g
            is the gradient of the mean squared error over classes between the mean APP-U and the uniform distribution.
            A fresh SGD optimiser (rate 1, Nesterov momentum 0.9, weight decay 0.9) takes the same step.
    """
    clients, classes = averages.shape
    beta = torch.full((clients,), 1.0 / clients, dtype=averages.dtype, device=averages.device)
    for _ in range(ITERATIONS):
        distance = beta @ averages - 1.0 / classes
        slope = averages @ distance
        if as_written:
            step = beta - slope / (distance.square().sum() + 1e-12).sqrt()
        else:
            step = -0.71 * beta - 1.9 * (2.0 / classes) * slope
        beta = step.softmax(dim=0)
    return beta

"""FixMatch in a federation: hard pseudo-labels above a fixed threshold, strong views to learn them on."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from datamodules.base import SiteData
from datamodules.common.streams import SERVER
from methods.base import Batch, LocalWork, Pass, Scope, Site, Stream, Upload
from methods.parts.dpl import debias
from methods.parts.labels_at_server import LabelsAtServer
from methods.parts.server_momentum import ServerMomentum
from methods.parts.static_norms import StaticNorms


class FixMatch(LabelsAtServer, StaticNorms, ServerMomentum):
    """Federated FixMatch (Sohn et al., NeurIPS 2020), the baseline of (FL)2 (NeurIPS 2024, Table 2) and FedDB.

    FedDure's baseline of that name is ``LocalSSL``, whose step is another one.

    A client labels its images with the model it received (or, ``every_step``, with the one it trains) on weak views,
    keeps labels whose probability reaches ``threshold`` and learns them on strong views, together with its own labels
    where it has any. A server with labels trains as ``LabelsAtServer`` says.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold`` | 0.95 | 0.95 ((FL)2, FedDB) | 0.95, reached counts |
    | ``lambda_u`` weight of the pseudo-labels | 1 | 1 | 1 |
    | ``pl_time`` when labels are made | every step | once per round ((FL)2, FedDB) | ``round_start`` |
    | ``unsup_norm``, what the loss is a mean over | all | selected ((FL)2, FedDB) | null |
    | ``empty_client`` without a single label | silent | stays in the average, unchanged | ``keep`` |
    | ``lr``, ``momentum``, ``nesterov``, ``weight_decay`` | 0.03, 0.9, yes, 5e-4 | the same | the same |
    | ``clip_norm`` | silent | 1, before weight decay | 1 |
    | ``batch_size``, ``local_epochs`` | 32, 5 ((FL)2) | the same | the same |
    | ``server_batch_size``, ``server_epochs`` | 10, 5 ((FL)2) | the same | the same |
    | ``server_momentum``, ``lr_schedule`` | 0.5, cosine | 0.5, constant ((FL)2: never advanced) | 0.5, ``cosine`` |
    | ``reset_momentum`` of the clients | silent | kept over the rounds | false |

    Args:
        model: the network.
        threshold: smallest probability that makes a pseudo-label.
        lambda_u: weight of the pseudo-labels' loss.
        pl_time: ``round_start``: batches hold selected images only, their labels fixed for the visit; ``every_step``:
            batches hold all images, those below the threshold count as loss 0.
        pl_batch: images per forward pass of the labelling (matters where it uses batch statistics).
        pl_shuffle: label the images in random order instead of the stored one (matters likewise).
        dpl: debias probabilities (``dpl.debias``) before they become pseudo-labels (FedDB's DPL).
        dpl_eps: see ``dpl.debias``.
        unsup_norm: the loss of pseudo-labels is a mean over the ``confident`` images or over ``all``; default:
            ``confident`` at ``round_start`` (over the batch), ``all`` at ``every_step``.
        full_batch: one step per epoch, on all labelled and all selected images of the client (FedDB).
        labelled_batch_size: a client's labelled images per step; default: ``batch_size``.
        labelled_only_batch: the same where there are no pseudo-labels; default: as where there are.
        empty_client: whether a client that trained on nothing stays in the average (``keep``, ``drop``);
            ``drop_unconfident``: a client without pseudo-labels leaves, even if it has labels to train on.
        batch_size: pseudo-labelled images per step.
    """

    views = {"labelled": {"x": "weak"}, "unlabelled": {"weak": "weak", "strong": "strong"}}

    def __init__(
        self,
        model: nn.Module,
        threshold: float = 0.95,
        lambda_u: float = 1.0,
        pl_time: Literal["round_start", "every_step"] = "round_start",
        pl_batch: int = 256,
        pl_shuffle: bool = False,
        dpl: bool = False,
        dpl_eps: float = 0.0,
        unsup_norm: Literal["confident", "all"] | None = None,
        full_batch: bool = False,
        labelled_batch_size: int | None = None,
        labelled_only_batch: int | None = None,
        empty_client: Literal["keep", "drop", "drop_unconfident"] = "keep",
        batch_size: int = 32,
        **base: Any,
    ) -> None:
        super().__init__(model, batch_size=batch_size, **base)
        self.require("from 0", lambda_u=lambda_u >= 0, dpl_eps=dpl_eps >= 0)
        self.require("from 1", pl_batch=pl_batch >= 1)
        self.require_thresholds("threshold")
        self.require(
            "from 1, or null",
            labelled_batch_size=labelled_batch_size is None or labelled_batch_size >= 1,
            labelled_only_batch=labelled_only_batch is None or labelled_only_batch >= 1,
        )
        self.require("null with full_batch", labelled_batch_size=labelled_batch_size is None or not full_batch)
        self.trains = True
        self.site: Site | None = None

    def streams(self, data: SiteData) -> dict[str, Stream]:
        """Both streams; the labelled one may have batches of its own size."""
        streams = super().streams(data)
        if "unlabelled" in streams:
            streams["unlabelled"].batch_size = self.step_size(len(data.unlabelled))
            streams["unlabelled"].fields = {"index": data.unlabelled}
        if "labelled" in streams:
            streams["labelled"].batch_size = self.step_size(len(data.labelled), self.hparams.labelled_batch_size)
        return streams

    def optimizer_scopes(self) -> Sequence[Scope]:
        """``reset_momentum`` is about clients: the server always keeps its optimiser."""
        return ["personal"] if self.visit.client == SERVER else super().optimizer_scopes()

    def step_size(self, images: int, own: int | None = None) -> int:
        """Samples per step of a stream of ``images``, which may have its ``own`` batch size."""
        if self.hparams.full_batch:
            return max(images, 1)
        return own or int(self.hparams.batch_size)

    def local_work(self, client: Site) -> LocalWork:
        """Pseudo-label all images at once, unless that happens at every step, and train on what is kept."""
        self.site = client
        streams = self.visit_streams(client)
        self.trains = any(stream.usable for stream in streams.values())
        return [Pass(streams)] * int(self.hparams.local_epochs)

    def visit_streams(self, client: Site) -> dict[str, Stream]:
        """What every local epoch of the visit walks through."""
        h, index = self.hparams, client.data.unlabelled
        streams = self.streams(client.data)
        if h.pl_time == "round_start" and len(index):
            streams |= self.pseudo_labelled(client, self.debiased(self.probabilities(client, index)))
            if "labelled" in streams:
                streams["labelled"].cycle = streams["unlabelled"].usable
        if "unlabelled" not in streams or not streams["unlabelled"].usable:
            if h.empty_client == "drop_unconfident":
                return {}
            if "labelled" in streams and h.labelled_only_batch:
                streams["labelled"].batch_size = h.labelled_only_batch
        return streams

    @torch.no_grad()
    def probabilities(self, client: Site, index: Tensor) -> Tensor:
        """Predictions ``[n, C]`` of the received model on one weak view per image, in evaluation mode."""
        self.eval()
        order = torch.arange(len(index), device=index.device)
        if self.hparams["pl_shuffle"]:
            order = torch.randperm(len(index), generator=client.generator("order/prepare")).to(index.device)
        with self.autocast():
            blocks = client.views("weak", index[order], size=self.hparams["pl_batch"])
            return torch.cat([self.predict(x) for x in blocks])[order.argsort()]

    def debiased(self, probabilities: Tensor) -> Tensor:
        """The probabilities ``[n, C]`` that pseudo-labels are made from."""
        return debias(probabilities, self.hparams["dpl_eps"]) if self.hparams["dpl"] else probabilities

    def select(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-labels ``[n]`` and which of them are used, bool ``[n]``."""
        confidence, labels = probabilities.max(dim=1)
        return labels, confidence >= self.hparams["threshold"]

    def pseudo_labelled(self, client: Site, probabilities: Tensor) -> dict[str, Stream]:
        """The streams of pseudo-labelled images, given the predictions ``[n, C]`` on all of them."""
        index = client.data.unlabelled
        labels, keep = self.select(probabilities)
        client.report_pseudo_labels(index, labels, keep)
        fields = {"y": labels[keep]}
        if self.hparams["unsup_norm"] == "all":
            fields["share"] = keep.float().mean().expand(len(fields["y"]))
        return {"unlabelled": self.fixed(index[keep], None, **fields)}

    def fixed(self, index: Tensor, views: Mapping[str, str] | None = None, **fields: Tensor) -> Stream:
        """A stream of images with fixed fields (labels ``y``), by default in strong views only."""
        size = self.step_size(len(index))
        return Stream(index, size, views or {"strong": "strong"}, fields, min_batch=self.hparams["min_batch"])

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Cross-entropy of labels plus ``lambda_u`` times that of pseudo-labels."""
        loss = torch.zeros((), device=self.device)
        if "labelled" in batch:
            loss = loss + F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])
            self.log("loss_labelled", loss.detach())
        if "unlabelled" in batch:
            unlabelled = self.unlabelled_loss(batch["unlabelled"])
            self.log("loss_unlabelled", unlabelled.detach())
            loss = loss + self.hparams["lambda_u"] * unlabelled
        return loss

    def unlabelled_loss(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Mean over the batch; labels that the batch does not bring are made now, from its weak views."""
        if "y" in samples:
            loss = F.cross_entropy(self(samples["strong"]), samples["y"])
            return loss * samples["share"].mean() if "share" in samples else loss
        with torch.no_grad():
            labels, keep = self.select(self.debiased(self.predict(samples["weak"])))
        if self.site is not None:
            self.site.report_pseudo_labels(samples["index"], labels, keep)
        losses = F.cross_entropy(self(samples["strong"]), labels, reduction="none") * keep
        if self.hparams["unsup_norm"] == "confident":
            return losses.sum() / keep.sum().clamp(min=1)
        return losses.mean()

    def on_train_end(self) -> None:
        """The step reports to no site any more."""
        super().on_train_end()
        self.site = None

    def make_upload(self, client: Site) -> Upload | None:
        """The model, also of a client that trained on nothing, unless such clients are dropped."""
        if not self.trains and self.hparams.empty_client != "keep":
            return None
        return super().make_upload(client)

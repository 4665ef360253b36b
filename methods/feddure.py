"""FedDure: two regulators weight unlabelled images and pseudo-labels by their effect on the labelled loss."""

import copy
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad, grad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from methods.base import Batch, Scope
from methods.local_ssl import LocalSSL
from methods.parts.joint_steps import SupervisedFirst

make_dual: Callable[..., Tensor] = forward_ad.make_dual
unpack_dual: Callable[..., Any] = forward_ad.unpack_dual


class FedDure(SupervisedFirst, LocalSSL):
    """Federated semi-supervised learning with dual regulators (Bai et al., AAAI 2024), Algorithm 1.

    Symbols: the local model f_l has parameters theta (``model``), the coarse regulator C-reg f_d has parameters phi
    (``creg``), the fine-grained regulator F-reg f_w has parameters w (``freg``). A batch has n labelled images x with
    labels y, and N unlabelled images in a weak and a strong view u^w, u^s. y_hat are the pseudo-labels; h_i and m_i are
    the weights that F-reg gives an image from the logits of C-reg and of the local model; d is the reward of all
    pseudo-labels together.

    One joint step: F-reg takes a step on the labelled loss of C-reg after a look-ahead step of phi on weighted
    pseudo-labels (Eqs. 4, 5). It then weights the images in C-reg's own step (Eq. 2) and in the local model's (Eqs. 6,
    7). d (Eq. 3) is how much C-reg's step lowered its labelled loss; the local model descends along
    ``g_s + g_u + d * grad mean CE(y_hat, f_l(u^s))`` (Eqs. 7-10). C-reg starts from the global model in every visit;
    F-reg stays with the client. The regulators are not used in supervised steps, nor where a client has only one kind
    of images.

    The released client runs a different algorithm: ``Released`` in ``methods/ablations/feddure.py``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``lr`` | 5e-4 | 6e-4 (CINIC-10 5e-4) | 5e-4 |
    | ``creg_lr`` eta_s of look-ahead and C-reg | 5e-4 | as ``lr`` | 5e-4, independent of ``lr`` |
    | ``feedback_weight``: factor of d | 1 | -1: its d is new - old | 1 |
    | ``unsup_targets``, ``threshold`` | hard, none | soft, 0.6 | hard, 0 |
    | ``unsup_weight``, ``unsup_ramp`` | 1, none | 8, 20 steps | 1, 0 |
    | ``supervised_steps`` before the joint ones | none | 5 (CINIC-10 100) | 0 |
    | ``steps_per_visit`` | one pass | 5 (CINIC-10 10) | 5 |
    | ``freg_hidden``, ``freg_lr`` | 128, 5e-4 | 100, 1e-3, never trained | 128, 5e-4 |
    | lifetime of F-reg | w is initialised once per client | new in every visit, unused | w is kept, Adam is new |
    | F-reg's input | output vector, strong view | softmax, weak view, unused | softmax, strong view, without gradient |
    | batch norm of C-reg's labelled losses | not given | training mode | as released |

    Everything else follows ``LocalSSL``, after the steps of ``SupervisedFirst``. Logged in addition to the loss: d
    times ``feedback_weight``, and the mean of m.

    Args:
        freg_hidden: hidden units of F-reg.
        freg_lr: learning rate of F-reg.
    """

    scopes = {**LocalSSL.scopes, "creg": "local", "freg": "personal"}
    few_steps = (2, 4)
    batch_cap = 400

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        threshold: float = 0.0,
        creg_lr: float = 5e-4,
        feedback_weight: float = 1.0,
        freg_hidden: int = 128,
        freg_lr: float = 5e-4,
        **base: Any,
    ) -> None:
        super().__init__(model, **base)
        self.automatic_optimization = False
        self.creg = copy.deepcopy(model)
        self.freg = WeightNet(num_classes, self.hparams.freg_hidden)

    def configure_optimizers(self) -> Any:
        """Return one optimiser each for the local model, C-reg and F-reg."""
        h = self.hparams
        parts = ((self.model, self.learning_rate()), (self.creg, h.creg_lr), (self.freg, h.freg_lr))
        return [self.make_optimizer(part.parameters(), rate) for part, rate in parts]

    def optimizer_scopes(self) -> Sequence[Scope]:
        """The regulators' optimisers are new in every visit."""
        return [*super().optimizer_scopes(), "local", "local"]

    def on_train_start(self) -> None:
        """Copy the global model to C-reg; initialise F-reg once per client."""
        super().on_train_start()
        self.creg.load_state_dict(self.model.state_dict())
        if self.visit.first:
            self.freg.reset_parameters(self.generator)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Lines 15 to 22 of Algorithm 1; returns the local model's loss."""
        local, creg, freg = cast(Any, self.optimizers())
        out = self.outputs(batch)
        if not is_joint(batch):
            return self.local_step(local, self.local_loss(batch, out))
        x, y, u_s = batch["labelled"]["x"], batch["labelled"]["y"], batch["unlabelled"]["strong"]
        y_hat = out["weak"].detach().argmax(dim=1)  # Eq. 1
        z = self.creg(u_s)
        self.descend(freg, self.look_ahead_loss(self.creg, u_s, z, y_hat, x, y))  # Eqs. 4, 5
        before = self.creg_loss(x, y)
        self.descend(creg, self.pseudo_loss(z, y_hat))  # Eq. 2
        d = self.hparams.feedback_weight * (before - self.creg_loss(x, y))  # Eq. 3
        loss = self.local_loss(batch, out)  # Eqs. 6, 7, 9: g_s and g_u
        loss = loss + self.feedback(d, y_hat, out)  # Eq. 8
        return self.local_step(local, loss)  # Eq. 10

    def local_step(self, optimizer: Any, loss: Tensor) -> Tensor:
        """Take the local model's step and log its loss."""
        loss = self.descend(optimizer, loss)
        self.log("loss", loss)
        return loss

    def image_weights(self, logits: Tensor) -> Tensor:
        """F-reg's weights ``[N]`` for images with logits ``[N, C]``, which get no gradient."""
        return self.freg(logits.detach().to(self.dtype).softmax(dim=1))

    def pseudo_loss(self, z: Tensor, y_hat: Tensor) -> Tensor:
        """C-reg's loss on pseudo-labels, ``1/N sum_i h_i CE(y_hat_i, z_i)``, as a function of its logits z."""
        return self.weighted(F.cross_entropy(z, y_hat, reduction="none"), self.image_weights(z))

    def weighted(self, losses: Tensor, weights: Tensor) -> Tensor:
        """Combine the images' losses ``[N]``: ``1/N sum_i w_i l_i``."""
        return (weights * losses).sum() / len(losses)

    def look_ahead_loss(self, net: nn.Module, u_s: Tensor, z: Tensor, y_hat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Eqs. 4, 5: a number whose gradient in w is that of ``CE(y, f_d(x; phi^-))``.

        ``phi^- = phi - eta_s d/dphi pseudo_loss(z, y_hat)``, where the network ``net`` is f_d, and z are its logits
        ``f_d(u^s; phi)`` with their graph, which is retained. There is no differentiation through a backward pass of
        the network: with ``v = grad CE(y, f_d(x))`` at phi^- the gradient is that of ``-eta_s <d pseudo_loss / dz,
        dz>``, where ``dz`` is the directional derivative of the logits along v, since ``pseudo_loss`` depends on phi
        only through them. Exact for networks without random layers; with dropout, the two passes draw different masks.
        Parameters and buffers of the network do not change.
        """
        eta_s = self.hparams.creg_lr
        phi = {name: p for name, p in net.named_parameters() if p.requires_grad}
        slopes = grad(self.pseudo_loss(z, y_hat), list(phi.values()), retain_graph=True, materialize_grads=True)
        phi_minus = {n: (phi[n].detach() - eta_s * g).requires_grad_() for n, g in zip(phi, slopes, strict=True)}
        v = grad(F.cross_entropy(stateless(net, x, phi_minus), y), list(phi_minus.values()), materialize_grads=True)
        dz = directional_derivative(net, u_s, dict(zip(phi, v, strict=True)))
        leaf = z.detach().to(torch.promote_types(z.dtype, torch.float32)).requires_grad_()
        (slope,) = grad(self.pseudo_loss(leaf, y_hat), leaf, create_graph=True)
        return -eta_s * (slope * dz).sum()

    @torch.no_grad()
    def creg_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Labelled loss of the current C-reg, ``CE(y, f_d(x; phi))``."""
        return F.cross_entropy(self.creg(x), y)

    def consistency(self, out: Mapping[str, Tensor]) -> Tensor:
        """Eqs. 6, 7: ``1/N sum_i m_i CE(y_hat_i, f_l(u^s_i))``."""
        losses, certain = self.unsupervised(out)
        return self.weighted(certain * losses, self.local_weights(out["strong"]))

    def local_weights(self, logits: Tensor) -> Tensor:
        """m: the updated F-reg's weights ``[N]`` of the local model's logits, without gradient."""
        m = self.image_weights(logits).detach()
        self.tally("freg/m", m.mean())
        return m

    def feedback(self, d: Tensor, y_hat: Tensor, out: Mapping[str, Tensor]) -> Tensor:
        """Eq. 8: the loss whose gradient is g_d."""
        self.tally("creg/d", d)
        return d * F.cross_entropy(out["strong"], y_hat)


class WeightNet(nn.Sequential):
    """F-reg: maps vectors ``[N, num_classes]`` to weights in (0, 1), ``[N]``.

    Computes in the precision of its parameters: nearby weights differ by less than bfloat16 can resolve.
    """

    def __init__(self, num_classes: int, hidden: int) -> None:
        super().__init__(nn.Linear(num_classes, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Return one weight per row."""
        with torch.autocast(x.device.type, enabled=False):
            for layer in self:
                x = layer(x)
            return x.squeeze(1)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraw torch's default initialisation of linear layers, layer by layer, weights before biases.

        Draws are in float32 whatever the parameters' type, so a run in double precision starts from the same numbers.
        """
        for layer in self:
            if isinstance(layer, nn.Linear):
                bound = 1 / sqrt(layer.in_features)
                weight, bias = (torch.empty_like(part, dtype=torch.float32) for part in (layer.weight, layer.bias))
                layer.weight.copy_(nn.init.kaiming_uniform_(weight, a=sqrt(5), generator=generator))
                layer.bias.copy_(nn.init.uniform_(bias, -bound, bound, generator=generator))


def is_joint(batch: Batch) -> bool:
    """Whether the step trains on labelled and unlabelled images together."""
    return "labelled" in batch and "unlabelled" in batch


def directional_derivative(net: nn.Module, x: Tensor, direction: Mapping[str, Tensor]) -> Tensor:
    """``d/de net(x; phi + e * direction)`` at 0, ``[B, C]``, in one forward pass with dual numbers.

    Attention is computed in plain operations, since torch's fused ones have no forward-mode derivative.
    """
    phi = dict(net.named_parameters())
    with torch.no_grad(), forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        dual = {name: make_dual(phi[name].detach(), tangent) for name, tangent in direction.items()}
        change: Tensor = unpack_dual(stateless(net, x, dual)).tangent
    return change


def stateless(net: nn.Module, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
    """``net(x)`` with the given parameters (by name; default: its own) and copies of its buffers."""
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    return functional_call(net, {**(parameters or {}), **buffers}, (x,))

"""The stacked engine: clients of one process train side by side, as one network with a further axis.

The tensors of the clients are stacked along a first axis, the method's objective is mapped over it (``torch.vmap``),
and one ordinary backward pass of the summed losses gives every client its own gradient. Everything before and after
the training of a client runs as in the reference engine, in a copy of the method per client.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.sgd import sgd

from benchmark.federation.reference import ClientState, Outcome, ReferenceEngine, Stay, Tally
from benchmark.registry import one_line
from datamodules.common.errors import ConfigError, RunError
from datamodules.views.batches import Batch
from methods.base import FedMethod, Visit

Tensors = dict[str, Tensor]

REMEDY = "use engine=reference"
AGREEMENT = {torch.float64: 1e-6, torch.float32: 3e-2}
"""How far the losses of a first stacked step may lie from those of the clients alone, relative to them."""


class StackedEngine(ReferenceEngine):
    """Runs visits in stacks of up to ``stack`` clients; the other arguments are those of the reference engine.

    A client's step may depend on its registered tensors, its batch, and on numbers that all clients of a kind (with or
    without labels) share in a round; it must not draw random numbers. A run compares the losses of its first stacked
    step of every kind with those of the clients alone.

    Raises:
        ConfigError: the method takes its steps in a way that cannot be stacked, or ``stack`` is not positive.
    """

    def __init__(self, method: FedMethod, *args: Any, stack: int = 16) -> None:
        if reason := unstackable(method):
            raise ConfigError(f"engine=stacked: {type(method).__name__} {reason}; {REMEDY}")
        if stack < 1:
            raise ConfigError(f"stack={stack}: at least one client trains at a time")
        self.spare, self.arguments, self.stack = copy.deepcopy(method), args, stack
        super().__init__(method, *args)
        self.slots: list[ReferenceEngine] = [self]
        self.compared: set[bool] = set()

    def visits(
        self, visits: Sequence[Visit], server: Mapping[str, Tensor], kept: Mapping[int, ClientState]
    ) -> tuple[dict[tuple[int, int], Outcome], dict[int, ClientState]]:
        """As in the reference engine; the second visit of a client is in a later stack than the first."""
        results: dict[tuple[int, int], Outcome] = {}
        states: dict[int, ClientState] = {}
        for together in self.stacks(visits):
            while len(self.slots) < len(together):
                self.slots.append(ReferenceEngine(copy.deepcopy(self.spare), *self.arguments))
            stays = []
            for slot, visit in zip(self.slots, together, strict=False):
                state = states.get(visit.client, kept.get(visit.client))
                stays.append(slot.arrive(visit, self.sent(visit, server), state))
            Stack(stays, self.compared).train()
            for slot, visit, stay in zip(self.slots, together, stays, strict=False):
                upload, state, tally, sent = slot.depart(stay)
                results[visit.client, visit.repeat] = upload, tally, sent
                states[visit.client] = state
        return results, states

    def stacks(self, visits: Sequence[Visit]) -> Iterator[list[Visit]]:
        """Visits that can train side by side: of one kind, each client once, the larger ones together."""
        kinds: dict[tuple[int, bool], list[Visit]] = {}
        for visit in sorted(visits, key=lambda v: (v.repeat, v.labelled, -v.size, v.client)):
            kinds.setdefault((visit.repeat, visit.labelled), []).append(visit)
        for alike in kinds.values():
            for start in range(0, len(alike), self.stack):
                yield alike[start : start + self.stack]


class Stack:
    """Prepared clients of one kind, and their tensors ``[clients, ...]`` by name.

    Args:
        stays: the clients.
        compared: kinds (with labels or not) whose stacked step has been compared with the clients' own in this run.
    """

    def __init__(self, stays: Sequence[Stay], compared: set[bool]) -> None:
        self.stays, self.compared = stays, compared
        self.methods = [stay.site.engine.method for stay in stays]
        self.lead = self.methods[0]
        self.call = _Call(self.lead)
        self.tensors = _stacked([_tensors(method) for method in self.methods])
        names = {id(tensor): name for name, tensor in _tensors(self.lead).items()}
        self.groups = [g | {"params": [names[id(p)] for p in g["params"]]} for g in _sgd(self.lead).param_groups]
        if any(_settings(method) != _settings(self.lead) for method in self.methods):
            raise RunError(f"{type(self.lead).__name__}: clients of one kind train at different rates; {REMEDY}")
        self.trained = [name for group in self.groups for name in group["params"]]
        self.moved: list[set[str]] = [set() for _ in stays]
        self.momentum = _stacked([self.momenta(row, stay) for row, stay in enumerate(stays)])
        self.totals: Tensors = {}
        self.weights: dict[str, list[float]] = {}

    def momenta(self, row: int, stay: Stay) -> Tensors:
        """Momentum buffers of a client by name, zero where it has none yet."""
        kept = stay.site.optimizers[0] if stay.site.optimizers else [{}] * len(self.trained)
        held = {name: state["momentum_buffer"] for name, state in zip(self.trained, kept, strict=True) if state}
        moving = [name for group in self.groups if group["momentum"] for name in group["params"]]
        self.moved[row] = held.keys() & set(moving)
        return {name: held.get(name, torch.zeros_like(self.tensors[name][row])) for name in moving}

    def train(self) -> None:
        """All local epochs, one step of every client at a time; a client without batches left waits for the others."""
        walks = [self.batches(row, stay) for row, stay in enumerate(self.stays)]
        number = 0
        while batches := {row: batch for row, walk in enumerate(walks) if (batch := next(walk, None)) is not None}:
            for rows in _same_shapes(batches):
                self.step(rows, [batches[row] for row in rows], number)
            number += 1
        for row, (stay, method) in enumerate(zip(self.stays, self.methods, strict=True)):
            for name, tensor in _tensors(method).items():
                tensor.detach().copy_(self.tensors[name][row])
            moved = self.moved[row] & self.momentum.keys()
            buffers = {name: {"momentum_buffer": self.momentum[name][row].clone()} for name in moved}
            stay.site.optimizers = [[buffers.get(name, {}) for name in self.trained]]
            for name, total in self.totals.items():
                if self.weights[name][row]:
                    before, weight = stay.presence.tally.get(name, (0.0, 0.0))
                    stay.presence.tally[name] = [before + total[row], weight + self.weights[name][row]]

    def batches(self, row: int, stay: Stay) -> Iterator[Batch]:
        """The batches of one client; the end of an epoch happens to its row of the stack."""
        method = self.methods[row]

        @torch.no_grad()
        def end(epoch: int, epochs: int) -> None:
            own = {name: tensor[row] for name, tensor in self.tensors.items()}
            _Call(method).at(own, "on_local_epoch_end", epoch, epochs)

        yield from stay.site.batches(stay.work, method.epochs(), method.steps(), end)

    def step(self, rows: list[int], batches: list[Batch], number: int) -> None:
        """One step of the clients ``rows``, whose batches have the same shapes."""
        batch = _stacked_batch(batches)
        with _rows(self.tensors, rows) as tensors, _rows(self.momentum, rows) as momentum:
            leaves = {name: tensors[name].detach().requires_grad_() for name in self.trained}
            losses, logs = self.mapped(tensors | leaves, batch, number)
            if not number:
                self.compare(rows, batches, losses)
            found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
            gradients = {name: g for name, g in zip(leaves, found, strict=True) if g is not None}
            self.clip(list(gradients.values()))
            for group in self.groups:
                names = [name for name in group["params"] if name in gradients]
                sgd(
                    [tensors[name] for name in names],
                    [gradients[name] for name in names],
                    [momentum.get(name) for name in names],
                    foreach=True,
                    **{k: group[k] for k in ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")},
                )
            if type(self.lead).on_train_batch_end is not FedMethod.on_train_batch_end:
                torch.vmap(self.end_step, (0, 0, None))(tensors, batch, number)
        for row in rows:
            self.moved[row] |= gradients.keys()
        self.add(rows, logs | {"loss": losses.detach()})

    def mapped(self, tensors: Tensors, batch: Batch, number: int) -> tuple[Tensor, Tensors]:
        """``objective`` of all clients, ``[clients]`` each.

        Raises:
            RunError: the step does something that cannot be mapped.
        """
        try:
            with self.lead.autocast():
                return torch.vmap(self.objective, (0, 0, None))(tensors, batch, number)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise RunError(
                f"{type(self.lead).__name__}: training_step cannot be stacked; {REMEDY}. {one_line(error)}"
            ) from error

    def objective(self, tensors: Tensors, batch: Batch, number: int) -> tuple[Tensor, Tensors]:
        """Loss of one client, and the weighted sums that it tallied."""
        tally: Tally = {}
        self.lead._tally = tally
        loss = self.call.at(tensors, "training_step", batch, number)
        self.lead._tally = None
        self.tallied = {name: weight for name, (_, weight) in tally.items()} | {"loss": 1.0}
        return loss, {name: total for name, (total, _) in tally.items()}

    def end_step(self, tensors: Tensors, batch: Batch, number: int) -> Tensor:
        """What one client does after a step, in place."""
        with torch.no_grad():
            self.call.at(tensors, "on_train_batch_end", None, batch, number)
        return torch.zeros(())

    def clip(self, gradients: list[Tensor]) -> None:
        """As ``FedMethod.clip``, with one norm per client, in place."""
        limit = self.lead.hparams["clip_norm"]
        if limit is None or not gradients:
            return
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
        factors = (limit / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))

    def add(self, rows: list[int], sums: Tensors) -> None:
        """Add weighted sums ``[len(rows), ...]`` to the clients' tallies."""
        for name, values in sums.items():
            if name not in self.totals:
                self.totals[name] = values.new_zeros(len(self.stays), *values.shape[1:])
                self.weights[name] = [0.0] * len(self.stays)
            with _rows(self.totals, rows) as totals:
                totals[name] += values
            for row in rows:
                self.weights[name][row] += self.tallied[name]

    @torch.no_grad()
    def compare(self, rows: list[int], batches: list[Batch], losses: Tensor) -> None:
        """Compare the first step of a kind, taken from where the clients still are, with their own.

        Raises:
            RunError: a loss depends on something that is neither in the registered tensors nor in the batch.
        """
        kind = self.stays[0].site.visit.labelled
        if kind in self.compared or len(rows) < 2:
            return
        self.compared.add(kind)
        for row, batch, loss in zip(rows, batches, losses.tolist(), strict=True):
            method, visit = self.methods[row], self.stays[row].site.visit
            method.visit = visit
            with method.autocast():
                own = method.training_step(batch, 0)
            if abs(float(own) - loss) > AGREEMENT[losses.dtype] * (abs(float(own)) + 1e-3):
                raise RunError(
                    f"{type(method).__name__}, client {visit.client}, round {visit.round}: the loss of its first step "
                    f"is {float(own):g} alone and {loss:g} in a stack of {len(rows)} clients; training_step depends on "
                    f"more than registered tensors and the batch; {REMEDY}"
                )


class _Call(nn.Module):
    """Calls a hook of a method with other tensors in place of its own."""

    def __init__(self, method: FedMethod) -> None:
        super().__init__()
        self.method = method

    def at(self, tensors: Tensors, hook: str, *args: Any) -> Any:
        """Call ``hook`` with the tensors, by the method's names."""
        return functional_call(self, {f"method.{name}": t for name, t in tensors.items()}, (hook, *args))

    def forward(self, hook: str, *args: Any) -> Any:
        """What the hook returns."""
        return getattr(self.method, hook)(*args)


def unstackable(method: FedMethod) -> str:
    """Why the clients of a method cannot train in a stack; empty if they can, as far as its class tells."""
    for hook in ("local_step", "clip"):
        if getattr(type(method), hook) is not getattr(FedMethod, hook):
            return f"has its own {hook}"
    made = method.configure_optimizers()
    return "" if type(made) is torch.optim.SGD else "does not use one torch.optim.SGD"


def _sgd(method: FedMethod) -> torch.optim.SGD:
    made: torch.optim.SGD = method.configure_optimizers()
    return made


def _settings(method: FedMethod) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in _sgd(method).param_groups]


def _tensors(method: FedMethod) -> Tensors:
    return dict(method.named_parameters()) | dict(method.named_buffers())


def _stacked(owned: Sequence[Mapping[str, Tensor]]) -> Tensors:
    return {name: torch.stack([tensors[name].detach() for tensors in owned]) for name in owned[0]}


def _stacked_batch(batches: Sequence[Batch]) -> Batch:
    return {
        stream: {field: torch.stack([batch[stream][field] for batch in batches]) for field in fields}
        for stream, fields in batches[0].items()
    }


def _same_shapes(batches: Mapping[int, Batch]) -> list[list[int]]:
    """Rows whose batches have the same streams, fields and shapes, in order."""
    alike: dict[Any, list[int]] = {}
    for row, batch in batches.items():
        form = [(s, f, v.shape) for s, fields in batch.items() for f, v in fields.items()]
        alike.setdefault(tuple(form), []).append(row)
    return list(alike.values())


@contextmanager
def _rows(tensors: Tensors, rows: list[int]) -> Iterator[Tensors]:
    """Views of neighbouring rows, or copies of scattered ones that are put back afterwards."""
    if rows == list(range(rows[0], rows[-1] + 1)):
        yield {name: tensor[rows[0] : rows[-1] + 1] for name, tensor in tensors.items()}
        return
    parts = {name: tensor[rows] for name, tensor in tensors.items()}
    yield parts
    for name, part in parts.items():
        tensors[name][rows] = part

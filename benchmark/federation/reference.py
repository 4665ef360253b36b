"""The reference engine: one client after the other in the live module, ordinary autograd, ``torch.optim``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from datamodules.base import FSSLDataModule, SiteData
from datamodules.common import streams as random_streams
from datamodules.common.errors import RunError
from datamodules.common.streams import SERVER
from datamodules.views.batches import Batch, Stream, epoch
from methods.base import FedMethod, Upload, Visit
from methods.parts.aggregation import num_bytes

EVAL_BLOCK = 256

Tally = dict[str, list[Any]]
"""Weighted sum and weight by name."""

Outcome = tuple[Upload | None, Tally, int]
"""What came of a visit: the upload, the tallies, the bytes that the client was sent."""


class ClientState:
    """What a client keeps between visits: personal tensors and the state of its optimisers."""

    def __init__(self, tensors: dict[str, Tensor], optimizers: list[list[dict[str, Any]]]) -> None:
        self.tensors = tensors
        self.optimizers = optimizers


class LocalSite:
    """The place a visit happens at, as the hooks of a method see it (see ``methods.base.Site``)."""

    def __init__(self, engine: "ReferenceEngine", data: SiteData, visit: Visit, optimizers: list[list[dict[str, Any]]]):
        self.engine, self.data, self.visit, self.optimizers = engine, data, visit, optimizers
        self._passes = 0

    def generator(self, purpose: str) -> torch.Generator:
        """Random stream of this visit; ``order/...`` lives on the CPU so that devices agree on it."""
        v = self.visit
        device = "cpu" if purpose.startswith("order") else self.engine.data.device
        return random_streams.generator(self.engine.seed, purpose, v.round, v.client, v.repeat, device=device)

    def views(self, view: str, index: Tensor, purpose: str = "prepare", size: int = EVAL_BLOCK) -> Iterator[Tensor]:
        """Float views of the training images at ``index`` in blocks of ``size``."""
        generator = self.generator(purpose)
        for start in range(0, len(index), size):
            yield self.engine.data.take(view, index[start : start + size], generator)

    def fit(self, streams: Mapping[str, Stream], epochs: int, steps: int | None = None) -> int:
        """Train the live module; optimiser state is taken up from, and left for, the site's other visits."""
        method, made = self.engine.method, self.engine.method.configure_optimizers()
        optimizers = list(made) if isinstance(made, (list, tuple)) else [made]
        _load_optimizers(optimizers, self.optimizers)
        taken = 0
        for batch in self.batches(streams, epochs, steps, method.on_local_epoch_end):
            method.local_step(batch, taken, made)
            method.on_train_batch_end(None, batch, taken)
            taken += 1
        self.optimizers = _dump_optimizers(optimizers)
        return taken

    def batches(
        self,
        streams: Mapping[str, Stream],
        epochs: int,
        steps: int | None,
        on_epoch_end: Callable[[int, int], None],
    ) -> Iterator[Batch]:
        """The batches of all local epochs; ``on_epoch_end(epoch, epochs)`` is called when those of one are used up."""
        for number in range(epochs):
            self._passes += 1
            generator = lambda purpose, n=self._passes: self.generator(f"{purpose}/{n}")  # noqa: E731
            yield from epoch(streams, self.engine.data, generator, steps)
            on_epoch_end(number, epochs)

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor, per_class: bool = False) -> None:
        """Shares of selected pseudo-labels and of right ones among them, as means over samples."""
        method, n = self.engine.method, len(index)
        if not n:
            return
        right = self.engine.data.oracle.correct(index, labels)
        classes = one_hot(labels, self.engine.data.num_classes) if per_class else None
        for name, hits in (("selected", selected), ("correct", right & selected), ("right", right)):
            method.tally(f"pseudo/{name}", hits.float().mean(), n)
            if classes is not None:
                method.tally(f"pseudo/{name}_by_class", (classes * hits[:, None]).float().mean(dim=0), n)

    def oracle(self, index: Tensor, labels: Tensor) -> Tensor:
        """Whether labels are true; see ``methods.base.Site``."""
        if not self.engine.method.uses_oracle:
            raise RunError(
                "the method asked for hidden labels without being a declared oracle; set uses_oracle = True on it"
            )
        return self.engine.data.oracle.correct(index, labels)


class ReferenceEngine:
    """Runs visits. The definition of truth: any faster engine must give the same results.

    Args:
        method: the live module; it becomes the client of the moment.
        data: the data module, set up and placed on the device of the method.
        seed: run seed of all random streams.
        rounds: planned rounds, for schedules.
        autocast: makes the mixed-precision context of the run.
    """

    def __init__(
        self,
        method: FedMethod,
        data: FSSLDataModule,
        seed: int,
        rounds: int,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.method, self.data, self.seed, self.rounds = method, data, seed, rounds
        method.precision = autocast
        self.initial = method.tensors("shared", "personal", "local", "server")

    def kept_bytes(self) -> int:
        """Bytes that a client keeps between its visits: personal tensors and what survives of its optimisers."""
        made = self.method.configure_optimizers()
        optimizers = made if isinstance(made, (list, tuple)) else [made]
        states = [[_state_of(g, p) for g in o.param_groups for p in g["params"]] for o in optimizers]
        kept: list[Tensor] = [
            value for own in self.method.kept_optimizers(states) for state in own for value in state.values()
        ]
        return num_bytes(self.method.tensors("personal")) + sum(t.numel() * t.element_size() for t in kept)

    def visits(
        self, visits: Sequence[Visit], server: Mapping[str, Tensor], kept: Mapping[int, ClientState]
    ) -> tuple[dict[tuple[int, int], Outcome], dict[int, ClientState]]:
        """Let clients take part, one after the other.

        Args:
            visits: of this process; a client may come several times.
            server: the server's tensors at the beginning of the round.
            kept: what the clients that took part before have kept.

        Returns:
            what came of the visits, by client and repeat, and what the clients keep now.
        """
        results: dict[tuple[int, int], Outcome] = {}
        states: dict[int, ClientState] = {}
        for visit in visits:
            upload, state, tally, sent = self.client(visit, server, states.get(visit.client, kept.get(visit.client)))
            results[visit.client, visit.repeat] = upload, tally, sent
            states[visit.client] = state
        return results, states

    def client(
        self, visit: Visit, server: Mapping[str, Tensor], state: ClientState | None
    ) -> tuple[Upload | None, ClientState, Tally, int]:
        """Let one client take part.

        Returns:
            its upload, what it keeps, its tallies (name -> [weighted sum, weight]), bytes it was sent.

        Raises:
            RunError: the loss is not finite, or anything the method raises, with method, client and round.
        """
        stay = self.arrive(visit, self.sent(visit, server), state)
        with stay.presence:
            stay.site.fit(stay.work, self.method.epochs(), self.method.steps())
        return self.depart(stay)

    def sent(self, visit: Visit, server: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the method's ``broadcast`` sends for a visit."""
        with self.outside(f"broadcast to client {visit.client}", visit.round):
            return self.method.broadcast(server, visit)

    @contextmanager
    def outside(self, hook: str, round: int) -> Iterator[None]:
        """For a hook that runs at no site: it draws from a stream of its own, and its errors say where they were."""
        with torch.random.fork_rng(_forked(self.data.device)):
            torch.manual_seed(random_streams.derive_seed(self.seed, f"torch/{hook}", round))
            try:
                yield
            except RunError:
                raise
            except Exception as error:
                where = f"{type(self.method).__name__}.{hook}, round {round}"
                raise RunError(f"{where}: {type(error).__name__}: {error}") from error

    def arrive(self, visit: Visit, sent: Mapping[str, Tensor], state: ClientState | None) -> "Stay":
        """The module becomes the client, takes up what it was sent and prepares what it will train on."""
        method = self.method
        site = LocalSite(self, self.data.client(visit.client), visit, state.optimizers if state else [])
        method.load_tensors(self.initial)
        method.load_tensors(sent)
        if state:
            method.load_tensors(state.tensors)
        method.train()
        presence = _Presence(method, site)
        with presence:
            with torch.no_grad():
                method.client_start(visit.first)
            work = method.client_prepare(site)
            method.train()
        return Stay(site, presence, work, num_bytes(sent))

    def depart(self, stay: "Stay") -> tuple[Upload | None, ClientState, Tally, int]:
        """What the trained client leaves behind: see ``client``."""
        with stay.presence:
            upload = self.method.client_finish(stay.site)
        kept = ClientState(self.method.tensors("personal"), self.method.kept_optimizers(stay.site.optimizers))
        return upload, kept, stay.presence.tally, stay.sent

    def server(self, round: int, state: ClientState | None, hook: str) -> tuple[ClientState, dict[str, list[Any]]]:
        """Run the server's hook (``server_start`` or ``server_step``) on its labelled data."""
        data = self.data.server
        visit = Visit(
            round,
            SERVER,
            repeat=int(hook == "server_start"),
            labelled=len(data.labelled) > 0,
            size=data.size,
            first=state is None,
            rounds=self.rounds,
        )
        site = LocalSite(self, data, visit, state.optimizers if state else [])
        presence = _Presence(self.method, site)
        with presence:
            self.method.train()
            getattr(self.method, hook)(site)
        return ClientState({}, site.optimizers), presence.tally


@dataclass
class Stay:
    """A client that has prepared its work: where it is, what it trains on, bytes it was sent."""

    site: LocalSite
    presence: "_Presence"
    work: Mapping[str, Stream]
    sent: int


class _Presence:
    """The method is at a site: collects tallies, and names the place in every error. It may leave and come back."""

    def __init__(self, method: FedMethod, site: LocalSite) -> None:
        self.method, self.site = method, site
        self.tally: Tally = {}
        self.devices = _forked(site.engine.data.device)
        self.drawn: list[Tensor] = []  # states of torch's generators when it left

    def __enter__(self) -> None:
        method, visit = self.method, self.site.visit
        method.visit, method._tally = visit, self.tally
        self.fork = torch.random.fork_rng(self.devices)
        self.fork.__enter__()
        if self.drawn:
            torch.set_rng_state(self.drawn[0])
            for device, state in zip(self.devices, self.drawn[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
        else:
            place = visit.round, visit.client, visit.repeat
            torch.manual_seed(random_streams.derive_seed(self.site.engine.seed, "torch", *place))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.drawn = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self.devices)]
        self.fork.__exit__(kind, error, trace)
        self.method._tally = None
        v = self.site.visit
        who = "the server" if v.client == SERVER else f"client {v.client} ({v.size} images)"
        where = f"{type(self.method).__name__}, {who}, round {v.round}"
        if error is not None:
            if isinstance(error, Exception) and not isinstance(error, RunError):
                raise RunError(f"{where}: {type(error).__name__}: {error}") from error
            return
        for name, (total, _) in self.tally.items():
            if name == "loss" and not bool(torch.isfinite(total).all()):
                raise RunError(
                    f"{where}: the loss is not finite. The last checkpoint is intact; lower the learning rate, "
                    "or try --precision 32-true if this was mixed precision"
                )


def _forked(device: torch.device) -> list[torch.device]:
    """Devices whose generators a fork has to restore beside the CPU's."""
    return [device] if device.type == "cuda" else []


def _state_of(group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Stands for the state of a parameter: Adam keeps two tensors of its shape, SGD with momentum one."""
    slots = ("exp_avg", "exp_avg_sq") if "betas" in group else ("momentum_buffer",) if group.get("momentum") else ()
    return dict.fromkeys(slots, parameter)


def _load_optimizers(optimizers: list[torch.optim.Optimizer], stored: list[list[dict[str, Any]]]) -> None:
    for optimizer, states in zip(optimizers, stored, strict=bool(stored)):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter, state in zip(parameters, states, strict=True):
            if state:
                optimizer.state[parameter] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}


def _dump_optimizers(optimizers: list[torch.optim.Optimizer]) -> list[list[dict[str, Any]]]:
    return [[dict(o.state.get(p, {})) for g in o.param_groups for p in g["params"]] for o in optimizers]

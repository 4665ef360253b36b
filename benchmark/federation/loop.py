"""The loop: plan, broadcast, clients, upload, aggregate, server, evaluate, record."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from lightning import Fabric
from torch import Tensor

from benchmark.federation.reference import ClientState, ReferenceEngine, Tally
from benchmark.federation.stacked import StackedEngine
from benchmark.report.metrics import classification_metrics, pseudo_label_classes, pseudo_label_shares
from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError, RunError
from datamodules.partition.roster import Roster
from methods.base import FedMethod, Upload, Visit
from methods.parts.aggregation import num_bytes


class RoundCallback(Protocol):
    """Called on every rank after each round."""

    def on_round_end(self, federation: "Federation", row: dict[str, Any] | None) -> None:
        """``row`` is the evaluated round's line of the record, ``None`` where the round was not evaluated."""


class Federation:
    """One federated run, from initialisation (or a checkpoint) to the last round.

    Args:
        method: the method; its tensors at this moment are the initial global model.
        data: data module, already set up.
        roster: who is registered and who takes part.
        fabric: launched Fabric; used for device, precision and ranks. The method is not wrapped:
            gradients of different clients must never be reduced into each other.
        rounds: rounds of the run.
        seed: run seed.
        eval_every: evaluate every so many rounds, and after the last.
        callbacks: called on every rank after each round.
        stack: clients that a process trains side by side (``StackedEngine``); ``None``: one after the other.
    """

    def __init__(
        self,
        method: FedMethod,
        data: FSSLDataModule,
        roster: Roster,
        fabric: Fabric,
        rounds: int,
        seed: int,
        eval_every: int = 1,
        callbacks: Sequence[RoundCallback] = (),
        stack: int | None = None,
    ) -> None:
        if rounds < 1 or eval_every < 1:
            raise ConfigError(f"rounds={rounds}, eval_every={eval_every}: both must be at least 1")
        self.method, self.data, self.roster, self.fabric = method.to(fabric.device), data, roster, fabric
        self.rounds, self.seed, self.eval_every = rounds, seed, eval_every
        self.callbacks = callbacks
        args = method, data, seed, rounds, fabric.autocast
        self.engine = ReferenceEngine(*args) if stack is None else StackedEngine(*args, stack=stack)
        method.spread = self.spread
        self.server = method.tensors("shared", "server")
        self.clients: dict[int, ClientState] = {}
        self.server_state: ClientState | None = None
        self.round = 0
        self.bytes_up = self.bytes_down = 0

    def run(self) -> None:
        """Run the remaining rounds."""
        if self.round == 0:
            self.server_phase(0, "server_start")
        while self.round < self.rounds:
            started = time.perf_counter()
            row = self.run_round(self.round)
            self.round += 1
            if row is not None:
                row["timing"] = {"seconds": round(time.perf_counter() - started, 4)}
            for callback in self.callbacks:
                callback.on_round_end(self, row)

    def run_round(self, number: int) -> dict[str, Any] | None:
        """One round; returns the line of the record if it was evaluated."""
        visits = self.visits(number)
        uploads, tally, down = self.run_visits(visits)
        self.bytes_down += down
        self.bytes_up += sum(num_bytes(u.tensors) + num_bytes(u.stats) for u in uploads)
        self.become_server()
        if uploads:
            with self.engine.outside("aggregate", number):
                self.method.aggregate(uploads)
        self.server = self.method.tensors("shared", "server")
        self.server_phase(number, "server_step", tally)
        last = number + 1 == self.rounds
        if not last and (number + 1) % self.eval_every:
            return None
        warmup = {"warmup": True} if self.method.is_warmup(number) else {}
        means = {name: _number(total, weight) for name, (total, weight) in sorted(tally.items())}
        return {
            "round": number,
            **warmup,
            **self.evaluate(),
            **{name: mean for name, mean in means.items() if mean is not None},
            **_shares(means),
            "participants": len({v.client for v in visits}),
            "visits": len(visits),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def visits(self, number: int) -> list[Visit]:
        """The round's visits in the order of the plan."""
        visits, seen = [], Counter[int]()
        with self.engine.outside("plan", number):
            plan = self.method.plan(number, self.roster)
        for cohort, clients in enumerate(plan):
            for client in clients:
                if not 0 <= client < self.data.num_clients:
                    raise RunError(
                        f"{type(self.method).__name__}.plan, round {number}: there is no client {client}; "
                        f"ids run from 0 to {self.data.num_clients - 1}"
                    )
                site = self.data.client(client)
                visits.append(
                    Visit(
                        round=number,
                        client=client,
                        cohort=cohort,
                        repeat=seen[client],
                        labelled=len(site.labelled) > 0,
                        size=site.size,
                        first=client not in self.clients and seen[client] == 0,
                        rounds=self.rounds,
                    )
                )
                seen[client] += 1
        return visits

    def run_visits(self, visits: Sequence[Visit]) -> tuple[list[Upload], Tally, int]:
        """Run the visits, sharded over ranks by client; every rank ends up with all results.

        Uploads come back in (client id, repeat) order, tallies are added in that order: the number of
        processes changes no bit.
        """
        mine = assign(visits, self.fabric.world_size)[self.fabric.global_rank]
        results, states = self.engine.visits(mine, self.server, self.clients)
        for their_results, their_states in gather(self.fabric, (results, states)):
            results |= their_results
            self.clients |= their_states
        total: Tally = {}
        for _, (_, tally, _) in sorted(results.items()):
            add_tally(total, tally)
        ordered = [results[key] for key in sorted(results)]
        return [u for u, _, _ in ordered if u is not None], total, sum(down for _, _, down in ordered)

    def become_server(self) -> None:
        """The module turns from the last client into the server; nothing of the client stays in it."""
        self.method.load_tensors(self.engine.initial)
        self.method.load_tensors(self.server)

    def server_phase(self, number: int, hook: str, tally: Tally | None = None) -> None:
        """Let the server work on its own labels, then refresh static norm statistics."""
        self.become_server()
        state, own = self.engine.server(number, self.server_state, hook)
        held = self.method.tensors("shared", "server"), state, own
        server, self.server_state, own = from_first(self.fabric, held)  # devices may round differently
        self.method.load_tensors(server)
        add_tally(tally if tally is not None else {}, {f"server/{name}": value for name, value in own.items()})
        with self.engine.outside("refresh_norm", number):
            self.method.refresh_norm(self.data)
        self.server = self.method.tensors("shared", "server")

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        """Metrics of the global model on the whole test set (4 decimals), its blocks sharded over ranks."""
        self.become_server()
        self.method.eval()
        with self.engine.outside("predict", self.round), self.method.autocast():
            blocks = (block for _, block in self.data.test_blocks(self.method.eval_batch))
            probabilities = self.spread(lambda block: self.method.predict(block()), blocks)
        self.method.train()
        scores = classification_metrics(torch.cat(probabilities).cpu(), self.data.test_labels)
        return {name: round(score, 4) for name, score in scores.items()}

    def spread(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Results of all items, in order; every rank works on its share of them and gets the others' results."""
        ranks, rank = self.fabric.world_size, self.fabric.global_rank
        mine = {i: work(item) for i, item in enumerate(items) if i % ranks == rank}
        results = {i: result for part in gather(self.fabric, mine) for i, result in part.items()}
        return [results[i] for i in sorted(results)]

    def state_dict(self) -> dict[str, Any]:
        """Everything the next round depends on."""
        return {
            "round": self.round,
            "server": self.server,
            "clients": {c: (s.tensors, s.optimizers) for c, s in self.clients.items()},
            "server_state": self.server_state.optimizers if self.server_state else None,
            "bytes": (self.bytes_up, self.bytes_down),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        device = self.fabric.device
        self.round = state["round"]
        self.server = _to(state["server"], device)
        self.clients = {c: ClientState(*_to(kept, device)) for c, kept in state["clients"].items()}
        optimizers = state["server_state"]
        self.server_state = None if optimizers is None else ClientState({}, _to(optimizers, device))
        self.bytes_up, self.bytes_down = state["bytes"]


def assign(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
    """Split visits over ranks: all visits of a client stay together, in order; the loads are levelled.

    The largest client (images times visits) goes to the least loaded rank first.
    """
    load: dict[int, int] = {}
    for visit in visits:
        load[visit.client] = load.get(visit.client, 0) + max(visit.size, 1)
    totals, owner = [0] * ranks, {}
    for client in sorted(load, key=lambda c: (-load[c], c)):
        owner[client] = min(range(ranks), key=lambda r: (totals[r], r))
        totals[owner[client]] += load[client]
    return [[v for v in visits if owner[v.client] == rank] for rank in range(ranks)]


def gather(fabric: Fabric, mine: Any) -> list[Any]:
    """What every rank holds, in rank order, on this rank's device."""
    if fabric.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(everyone, _to(mine, torch.device("cpu")))
    return [mine if r == fabric.global_rank else _to(x, fabric.device) for r, x in enumerate(everyone)]


def from_first(fabric: Fabric, mine: Any) -> Any:
    """What the first rank holds, on this rank's device."""
    if fabric.world_size == 1:
        return mine
    held = [_to(mine, torch.device("cpu"))]
    dist.broadcast_object_list(held, src=0)
    return _to(held[0], fabric.device)


def add_tally(total: Tally, tally: Tally) -> None:
    """Add sums and weights of a visit to those of the round."""
    for name, (value, weight) in tally.items():
        if name in total:
            total[name] = [total[name][0] + value, total[name][1] + weight]
        else:
            total[name] = [value, weight]


def _shares(means: Mapping[str, Any]) -> dict[str, Any]:
    shares: dict[str, Any] = {}
    for suffix, derive in (("", pseudo_label_shares), ("_by_class", pseudo_label_classes)):
        selected, correct = (means.get(f"pseudo/{name}{suffix}") for name in ("selected", "correct"))
        if selected is not None and correct is not None:
            shares |= derive(selected, correct)
    return {f"pseudo/{name}": value for name, value in shares.items()}


def _number(total: Tensor, weight: float) -> float | list[float] | None:
    """A mean as the record holds it: a number, a short list for a vector (per class), nothing for larger ones."""
    if total.ndim > 1 or not weight:
        return None
    return float(total) / weight if total.ndim == 0 else [round(v / weight, 6) for v in total.tolist()]


def _to(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, ClientState):
        return ClientState(_to(tree.tensors, device), _to(tree.optimizers, device))
    if isinstance(tree, Upload):
        return Upload(tree.visit, _to(tree.tensors, device), tree.weight, _to(tree.stats, device))
    if isinstance(tree, dict):
        return {key: _to(value, device) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_to(value, device) for value in tree)
    return tree

"""The loop: select, broadcast, visits, upload, aggregate, server, evaluate, record."""

import time
import warnings
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import inf, isnan
from typing import Any, Literal, NamedTuple, Protocol

import torch
from lightning import Fabric
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch import Callback
from torch import Tensor
from torch.nn.utils import get_total_norm

from benchmark.federation import averaging, hooks
from benchmark.federation.checkpoint import OnDisk
from benchmark.federation.collectives import all_gather, from_first, moved, together
from benchmark.federation.declarations import check_declarations, uploads_needed
from benchmark.federation.exact import JointMean, without_tensors
from benchmark.federation.fit import OptimizerStates
from benchmark.federation.reference import ClientState, Outcome, ReferenceEngine, Sums, Surroundings, place
from benchmark.federation.scaling import loss_scaler
from benchmark.federation.slots import SlotsEngine
from benchmark.federation.store import Store
from benchmark.runs.metrics import (
    class_accuracies,
    client_accuracies,
    pseudo_label_classes,
    pseudo_label_shares,
    scores,
)
from datamodules.base import FSSLDataModule
from datamodules.common.errors import NOT_FINITE, ConfigError, RunError
from datamodules.common.streams import SERVER
from datamodules.partition.roster import Roster
from methods.base import FedMethod, Upload, Visit
from methods.parts.tally import different_shapes

AT_A_TIME = 4  # clients of each process whose states are sent in one message


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
        callbacks: called on every rank after each round (``RoundCallback``), or during every visit (Lightning's).
        slots: clients that a process trains in turns (``SlotsEngine``); ``None``: one after the other.
        replay: whether the slots record their steps and replay them.
        nonfinite: what becomes of an upload whose loss or tensors are not finite: it ends the run (``stop``), or is
            left out of the aggregate and counted (``skip``).
        average_last: average the global weights of so many last rounds, and evaluate that model once, after the last
            (``averaged``); a run with fewer is averaged whole. 0: no average.
        store: where the clients' states are kept; default: in host memory.
        sums: how the mean of uploads is made: in client-id order from all of them in every process (``ordered``), or
            without rounding in the processes where they are, and joined (``exact``). Methods that need each client's
            tensors (``uploads_needed``) have them ``ordered`` in any case.
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
        callbacks: Sequence[RoundCallback | Callback] = (),
        slots: int | Literal["auto"] | None = None,
        replay: bool = True,
        nonfinite: Literal["stop", "skip"] = "stop",
        average_last: int = 0,
        store: Store | None = None,
        sums: Literal["ordered", "exact"] = "ordered",
    ) -> None:
        if rounds < 1 or eval_every < 1:
            raise ConfigError(f"rounds={rounds}, eval_every={eval_every}: both must be at least 1")
        check_declarations(method)
        self.method, self.data, self.roster, self.fabric = method.to(fabric.device), data, roster, fabric
        self.rounds, self.seed, self.eval_every = rounds, seed, eval_every
        self.callbacks = [one for one in callbacks if hasattr(one, "on_round_end")]
        around = Surroundings(
            data,
            seed,
            rounds,
            fabric.autocast,
            lambda: loss_scaler(fabric, method),
            callbacks=[one for one in callbacks if isinstance(one, Callback)],
            loggers=fabric.loggers,
            rank=fabric.global_rank,
            ranks=fabric.world_size,
        )
        self.engine = ReferenceEngine(method, around) if slots is None else SlotsEngine(method, around, slots, replay)
        method.spread = self.spread
        self.memory: dict[int, dict[str, Tensor]] = {}
        method.memory = self.memory
        self.server = method.tensors("shared", "server")
        self.clients = Store() if store is None else store
        self.server_state: ClientState | None = None
        self.round = 0
        self.nonfinite = nonfinite
        needed = uploads_needed(type(method))
        self.joint = JointMean(fabric, needed == "sum") if sums == "exact" and needed != "each" else None
        self.average_last = min(average_last, rounds)
        self.summed: dict[str, Tensor] = {}
        self.averaged: dict[str, Any] | None = None
        self.confusion: Tensor | None = None
        self.bytes_up = self.bytes_down = self.steps = self.skipped = 0
        self.learnt = False  # whether a step had a loss

    @property
    def client_state_bytes(self) -> int:
        """What all clients together may keep between their visits, in bytes."""
        return self.engine.kept_bytes() * self.data.num_clients

    @cached_property
    def held(self) -> Tensor:
        """Images per client and class, labelled or not, [K, C]; for metrics alone."""
        return torch.from_numpy(self.data.class_counts("labelled") + self.data.class_counts("unlabelled"))

    def run(self) -> None:
        """Run the remaining rounds, and evaluate the averaged model if there is one.

        ``confusion`` is then that of the last round's model (``metrics.scores``).
        """
        whole = self.round == 0
        if whole:
            self.server_phase(0, first=True)
        while self.round < self.rounds:
            started = time.perf_counter()
            row = self.run_round(self.round)
            self.round += 1
            if row is not None:
                taken = self.engine.counts()
                row["timing"] = {"seconds": round(time.perf_counter() - started, 4)} | (
                    {"slots": taken} if taken else {}
                )
                self.log(row)
            for callback in self.callbacks:
                callback.on_round_end(self, row)
        idle = whole and self.steps and not self.learnt and self.method.automatic_optimization
        if idle and self.fabric.is_global_zero:
            warnings.warn(
                f"{type(self.method).__name__}.training_step returned None in all {self.steps} steps of the run, so "
                "nothing was trained: return the loss (or set self.automatic_optimization = False)",
                stacklevel=2,
            )
        if self.confusion is None:  # a run that was stopped after its last round
            self.evaluate()
        if self.average_last:
            last, self.averaged = self.confusion, self.evaluate_averaged()
            self.confusion = last

    def log(self, row: Mapping[str, Any], loggers: Iterable[Logger] | None = None) -> None:
        """Give an evaluated round to Fabric's loggers, or to some of them.

        One that fails says so once and is left out from then on.
        """
        if not self.fabric.is_global_zero:
            return
        values = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "round"}
        for logger in list(self.fabric.loggers if loggers is None else loggers):
            try:
                logger.log_metrics(values, step=row["round"])
                logger.save()
            except Exception as error:
                self.fabric.loggers.remove(logger)
                warnings.warn(f"{type(logger).__name__} is off, the run goes on: {error}", stacklevel=2)

    def run_round(self, number: int) -> dict[str, Any] | None:
        """One round; returns the line of the record if it was evaluated."""
        visits = self.visits(number)
        uploads, by_client, outcomes = self.run_visits(visits)
        self.steps += sum(outcome.steps for outcome in outcomes)
        self.learnt |= any("loss" in outcome.sums for outcome in outcomes)
        self.bytes_down += sum(outcome.bytes_down for outcome in outcomes)
        self.bytes_up += sum(upload.num_bytes for upload in uploads)
        self.become_server()
        logged: Sums = {}
        if uploads:
            logged = self.engine.aggregate(uploads, number)
            with self.engine.outside("remember", number):
                kept = hooks.remembered(self.method.remember(uploads), self.data.num_clients)
            self.memory.update(kept)
        parts = [("in aggregate", logged), ("in server_step", self.server_phase(number))]
        if number >= self.rounds - self.average_last:
            self.summed = averaging.added(self.summed, self.server)
        with self.engine.outside("log", number):
            sums = added(by_client) | {f"server/{name}": value for name, value in added(parts).items()}
        last = number + 1 == self.rounds
        if not last and (number + 1) % self.eval_every:
            return None
        means = read_means(sums)
        with self.engine.outside("is_warmup", number):
            warmup = {"warmup": True} if self.method.is_warmup(number) else {}
        return {
            "round": number,
            **warmup,
            **self.evaluate(),
            **{name: mean for name, mean in means.items() if mean is not None},
            **_shares(means),
            "participants": len({v.client for v in visits}),
            "visits": len(visits),
            "steps": self.steps,
            **({"skipped": self.skipped} if self.skipped else {}),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def visits(self, number: int) -> list[Visit]:
        """The round's visits, cohort by cohort."""
        visits, seen = [], Counter[int]()
        with self.engine.outside("select_clients", number):
            cohorts = hooks.cohorts(self.method.select_clients(number, self.roster), self.data.num_clients)
        for cohort, clients in enumerate(cohorts):
            for client in clients:
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

    def run_visits(self, visits: Sequence[Visit]) -> tuple[list[Upload], list[tuple[str, Sums]], list[Outcome]]:
        """Run the visits, sharded over ranks by client; every rank ends up with all results.

        Uploads, and sums with who logged them, come back in (client id, repeat) order: the number of
        processes changes no bit. An upload with numbers that are not finite ends the run, or is left out and counted
        (``nonfinite``); its client then keeps what it had before the round.
        """
        ranks = self.fabric.world_size
        if self.joint is not None:
            self.joint.begin({name: self.server[name] for name in self.method.names("shared")})
        shares = in_order(visits, ranks) if self.engine.hands_on else assign(visits, ranks)
        mine = shares[self.fabric.global_rank]
        results: dict[tuple[int, int], Outcome] = {}
        left_out: set[tuple[int, int]] = set()
        for theirs in together(self.fabric, lambda: self.own_visits(mine)):
            results |= theirs.results
            left_out |= set(theirs.skipped)
            self.engine.handed_on = theirs.handed_on or self.engine.handed_on
        self.share_states(shares)
        self.skipped += len(left_out)
        self.bytes_up += sum(upload.num_bytes for key in left_out if (upload := results[key].upload) is not None)
        sound = {key: results[key] for key in sorted(results) if key not in left_out}
        uploads = [outcome.upload for outcome in sound.values() if outcome.upload is not None]
        if self.joint is not None:
            uploads = [self.joint.handed_out(upload) for upload in uploads]
        sums = [(f"by client {client}", outcome.sums) for (client, _), outcome in sound.items()]
        return uploads, sums, list(results.values())

    def own_visits(self, mine: Sequence[Visit]) -> "Visited":
        """Run the visits of this process.

        After a visit that is left out, the next round takes up the optimiser state that this one had taken up.
        """
        before = self.engine.handed_on
        self.clients.expect([visit.client for visit in mine])
        lost: list[Visit] = []

        def leave(visit: Visit, outcome: Outcome) -> Outcome:
            if self.joint is None:
                return outcome
            lost.extend(self.not_finite({visit: outcome}))
            return outcome if outcome.upload is None else outcome._replace(upload=self.give_up(outcome.upload, lost))

        stops = self.nonfinite == "stop"
        new: dict[int, ClientState] = {}  # what may have to be forgotten again
        results = self.engine.visits(mine, self.server, self.clients if stops else ChainMap(new, self.clients), leave)
        if self.joint is None:
            lost = self.not_finite({v: results[v.client, v.repeat] for v in mine})
        for visit in lost:
            new.pop(visit.client, None)
            self.engine.handed_on = before
        self.clients.update(new)
        skipped = [(visit.client, visit.repeat) for visit in lost]
        return Visited(results, skipped, self.engine.handed_on if mine else [])

    def share_states(self, shares: Sequence[Sequence[Visit]]) -> None:
        """Every process takes over what the clients of the others keep now, a few clients at a time.

        Args:
            shares: the visits of each process.
        """
        if self.fabric.world_size == 1:
            return
        clients = [list(dict.fromkeys(visit.client for visit in share)) for share in shares]
        rank = self.fabric.global_rank
        for start in range(0, max(map(len, clients)), AT_A_TIME):
            own = {k: self.clients[k] for k in clients[rank][start : start + AT_A_TIME] if k in self.clients}
            for other, theirs in enumerate(all_gather(self.fabric, own)):
                if other != rank:
                    self.clients.update(theirs)

    def not_finite(self, outcomes: Mapping[Visit, Outcome]) -> list[Visit]:
        """The visits that are left out since something of them is not finite.

        Raises:
            RunError: there is one, and ``nonfinite`` says ``stop``.
        """
        found = unfinished(outcomes)
        if self.nonfinite == "stop":
            for visit, what in found.items():
                raise RunError(f"{place(self.method, visit)}: {what}")
        return list(found)

    def give_up(self, upload: Upload, lost: Sequence[Visit]) -> Upload:
        """The upload without its tensors, which are a part of the joint mean, unless its visit is lost."""
        assert self.joint is not None
        if upload.visit in lost:
            return without_tensors(upload)
        with self.engine.outside(f"weights for client {upload.visit.client}", upload.visit.round):
            weight = self.method.weights([upload])[0] if self.joint.at_once else 0.0
            return self.joint.take(upload, float(weight))

    def become_server(self) -> None:
        """The module turns from the last client into the server; nothing of the client stays in it."""
        self.method.load_tensors({**self.engine.initial, **self.server})

    def server_phase(self, number: int, first: bool = False) -> Sums:
        """Let the server work on its own labels, then refresh static norm statistics; returns what it logged.

        The method is the server already, but before the first round.
        """
        if first:
            self.become_server()
        state, logged, steps = self.engine.server(number, self.server_state, first)
        self.steps += steps
        self.learnt |= "loss" in logged
        for visit, found in unfinished({Visit(number, SERVER): Outcome(None, logged, 0, steps)}).items():
            raise RunError(f"{place(self.method, visit)}: {found}")
        registered = self.method.registered()
        own = {name: registered[name] for name in self.method.names("shared", "server")}
        server, self.server_state, logged = from_first(self.fabric, (own, state, logged))
        if server is not own:  # devices may round differently: all take over the first process's model
            self.method.load_tensors(server)
        with self.engine.outside("refresh_norm", number):
            self.method.refresh_norm(self.data)
        self.server = self.method.tensors("shared", "server")
        return logged

    @torch.inference_mode()
    def evaluate(self) -> dict[str, Any]:
        """Metrics of the global model on the whole test set (4 decimals), its blocks sharded over ranks.

        ``acc_by_class`` has the accuracy on each class (2 decimals, ``None`` where the test set has none of it), and
        ``confusion`` keeps the matrix behind it. The method is the server.
        """
        self.method.eval()
        with self.engine.outside("predict", self.round), self.method.autocast():
            blocks = (block for _, block in self.data.test_blocks(self.method.eval_batch))
            probabilities = self.spread(lambda block: self.predicted(block()), blocks)
        self.engine.train_mode()
        metrics, self.confusion = scores(torch.cat(probabilities).cpu(), self.data.test_labels)
        by_class = class_accuracies(self.confusion)
        metrics |= client_accuracies(by_class, self.held)
        rounded = [None if isnan(share) else round(share, 2) for share in by_class.tolist()]
        return {name: round(score, 4) for name, score in metrics.items()} | {"acc_by_class": rounded}

    def evaluate_averaged(self) -> dict[str, Any]:
        """The reading ``averaged``: the number of ``rounds`` and the metrics of their averaged model.

        Averaged is all that the server holds (scopes ``shared`` and ``server``), since ``predict`` may read either.
        The method is the server before and after.
        """
        self.method.load_tensors(averaging.mean(self.summed, self.average_last, self.server))
        reading = self.evaluate()
        self.become_server()
        return {"rounds": self.average_last, **reading}

    def predicted(self, images: Tensor) -> Tensor:
        """Class probabilities of images."""
        return hooks.probabilities(self.method.predict(images), len(images))

    def spread(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Results of all items, in order; every rank works on its share of them and gets the others' results."""
        ranks, rank = self.fabric.world_size, self.fabric.global_rank

        def mine() -> dict[int, Any]:
            return {i: work(item) for i, item in enumerate(items) if i % ranks == rank}

        results = {i: result for part in together(self.fabric, mine) for i, result in part.items()}
        return [results[i] for i in sorted(results)]

    def state_dict(self) -> dict[str, Any]:
        """Everything the next round depends on; later rounds make tensors of their own and change none of these."""
        return {
            "round": self.round,
            "server": self.server,
            "clients": self.clients.saved(),
            "memory": dict(self.memory),
            "handed_on": self.engine.handed_on,
            "server_state": self.server_state.optimizers if self.server_state else None,
            "bytes": (self.bytes_up, self.bytes_down),
            "steps": self.steps,
            "skipped": self.skipped,
            "summed": self.summed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken; the method becomes the server, as it was then."""
        device = self.fabric.device
        self.round = state["round"]
        self.server = moved(state["server"], device)
        self.clients.clear()
        for client, kept in state["clients"].items():
            self.clients[client] = ClientState(*moved(kept.read() if isinstance(kept, OnDisk) else kept, device))
        self.memory.clear()
        self.memory.update(moved(state.get("memory", {}), device))
        self.engine.handed_on = moved(state.get("handed_on", []), device)
        optimizers = state["server_state"]
        self.server_state = None if optimizers is None else ClientState({}, moved(optimizers, device))
        self.bytes_up, self.bytes_down = state["bytes"]
        self.steps, self.skipped = state.get("steps", 0), state.get("skipped", 0)
        self.summed = moved(state.get("summed", {}), device)
        self.become_server()


class Visited(NamedTuple):
    """What came of a process's visits in a round, by client and repeat.

    Args:
        results: all outcomes.
        skipped: visits that are left out.
        handed_on: the state of optimisers that go from visit to visit.
    """

    results: dict[tuple[int, int], Outcome]
    skipped: list[tuple[int, int]]
    handed_on: OptimizerStates


def in_order(visits: Sequence[Visit], ranks: int) -> list[list[Visit]]:
    """All visits for the first rank: each begins with what the one before has left."""
    return [list(visits), *([] for _ in range(ranks - 1))]


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


def added(parts: Iterable[tuple[str, Sums]]) -> Sums:
    """Sums and weights of several visits, added in their order.

    Args:
        parts: where each was logged, for the message, and what.

    Raises:
        RunError: two of them have another shape.
    """
    total: Sums = {}
    first: dict[str, str] = {}
    for where, sums in parts:
        for name, (value, weight) in sums.items():
            before = total.get(name)
            if before is None:
                total[name], first[name] = (value, weight), where
                continue
            if before[0].shape != value.shape:
                raise RunError(different_shapes(name, before[0].shape, first[name], value.shape, where))
            total[name] = before[0] + value, before[1] + weight
    return total


def unfinished(outcomes: Mapping[Visit, Outcome]) -> dict[Visit, str]:
    """What is not finite, by visit: a loss, a tensor that was uploaded, or its weight. All are looked at together."""
    parts = {visit: _numbers(outcome) for visit, outcome in outcomes.items()}
    flags = {visit: get_total_norm([value for _, value in own], inf).isfinite() for visit, own in parts.items() if own}
    if not flags:
        return {}
    found = {}
    for visit, sound in zip(flags, torch.stack(list(flags.values())).tolist(), strict=True):
        if not sound:
            bad = next((name for name, value in parts[visit] if not bool(value.isfinite().all())), "")
            found[visit] = (
                f"{bad} {NOT_FINITE}. The last checkpoint is intact; lower the learning rate, or try --precision "
                "32-true if this was mixed precision"
            )
    return found


def _numbers(outcome: Outcome) -> list[tuple[str, Tensor]]:
    """The loss and the uploaded tensors of a visit that may be infinite, with what an error message calls them.

    A statistic may have the name of a tensor.
    """
    numbers = [("the loss", outcome.sums["loss"][0])] if "loss" in outcome.sums else []
    if (upload := outcome.upload) is not None:
        uploaded = (*upload.tensors.items(), *upload.stats.items())
        numbers += [(f"the uploaded {name}", value) for name, value in uploaded]
        device = next((value.device for _, value in numbers), None)
        numbers.append(("the upload's weight", torch.tensor(upload.weight, device=device)))
    return [(name, value) for name, value in numbers if value.is_floating_point() and value.numel()]


def read_means(sums: Sums) -> dict[str, float | list[float] | None]:
    """Means as the record holds them, read from the device at once: a number, a short list for a vector (per class),
    ``None`` for what is larger or was never logged.
    """
    names = sorted(sums)
    flat = [part.detach().to(torch.float64).flatten() for name in names for part in sums[name]]
    numbers = torch.split(torch.cat(flat).cpu(), [len(part) for part in flat]) if flat else ()
    means: dict[str, float | list[float] | None] = {}
    for name, total, weight in zip(names, numbers[::2], numbers[1::2], strict=True):
        by, shape = float(weight), sums[name][0].shape
        if len(shape) > 1 or not by:
            means[name] = None
        elif len(shape) == 1:
            means[name] = [round(value / by, 6) for value in total.tolist()]
        else:
            means[name] = float(total) / by
    return means


def _shares(means: Mapping[str, Any]) -> dict[str, Any]:
    shares: dict[str, Any] = {}
    for suffix, derive in (("", pseudo_label_shares), ("_by_class", pseudo_label_classes)):
        selected, correct = (means.get(f"pseudo/{name}{suffix}") for name in ("selected", "correct"))
        if selected is not None and correct is not None:
            shares |= derive(selected, correct)
    return {f"pseudo/{name}": value for name, value in shares.items()}

"""The loop over rounds: select, broadcast, visit, upload, aggregate, server step, evaluate."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from math import isnan
from typing import Any, Literal, Protocol

import torch
from lightning import Fabric
from lightning.pytorch import Callback
from torch import Tensor

from benchmark.federation import collectives, hooks
from benchmark.federation.engine import Engine
from benchmark.federation.fit import OptimizerStates, RunContext
from benchmark.federation.metrics import Sums, class_accuracies, client_accuracies, recorded_means, scores, sum_logged
from benchmark.federation.site import ClientState, VisitResult
from benchmark.federation.store import Store
from datamodules.base import FSSLDataModule
from datamodules.common.errors import RunError
from datamodules.common.streams import SERVER
from datamodules.partition.roster import Roster
from methods.base import FedMethod, Tally, Upload, Visit

CLIENTS_PER_MESSAGE = 4  # of each process, whose states are sent in one message


class RoundCallback(Protocol):
    """Called on every rank after each round."""

    def on_round_end(self, federation: "Federation", row: dict[str, Any] | None) -> None:
        """``row`` is the round's row of metrics; ``None`` if the round was not evaluated."""


class Federation:
    """One federated run, from the initial model or a checkpoint to the last round.

    Args:
        method: the method; its present tensors are the initial global model.
        data: data module, already set up.
        roster: which clients are registered and which take part.
        fabric: launched; gives device, precision and ranks. It does not wrap the method, since gradients of different
            clients must never be averaged.
        rounds: number of rounds.
        seed: the run's seed.
        eval_every: rounds between evaluations; the last round is always evaluated.
        callbacks: called on every rank after each round (``RoundCallback``) or during every visit (Lightning's).
        slots: number of clients that a process trains in turns; ``None``: one after another, without replay.
        replay: whether slots record steps and replay them.
        nonfinite: what to do with an upload whose loss or tensors are not finite: end the run (``stop``), or leave it
            out of the aggregate and count it (``skip``); its client then keeps what it had before the visit.
        average_last: average the global weights of this many last rounds (or of all, if there are fewer) and evaluate
            that model once, at the end (``averaged``). 0: no average.
        sums: how uploads are averaged: in client-id order, all of them in every process (``ordered``), or in that order
            in the processes where they were made, whose sums are then added up (``by_rank``). Methods that need each
            client's tensors (``uploads_needed``) always use ``ordered``.

    Raises:
        ConfigError: see ``hooks.check_declarations`` and ``Engine``.
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
        slots: int | None = None,
        replay: bool = True,
        nonfinite: Literal["stop", "skip"] = "stop",
        average_last: int = 0,
        sums: Literal["ordered", "by_rank"] = "ordered",
    ) -> None:
        hooks.check_declarations(method)
        self.method, self.data, self.roster, self.fabric = method.to(fabric.device), data, roster, fabric
        self.rounds, self.eval_every = rounds, eval_every
        self.average_last = min(average_last, rounds)
        self.joins_sums = sums == "by_rank" and not hooks.needs_each_upload(type(method))
        self.callbacks = [callback for callback in callbacks if hasattr(callback, "on_round_end")]
        lightning_callbacks = [callback for callback in callbacks if isinstance(callback, Callback)]
        context = RunContext(data, seed, rounds, fabric, nonfinite == "skip", lightning_callbacks)
        self.engine = Engine(method, context, slots or 1, replay and slots is not None)
        method.spread = self.spread = partial(collectives.spread, fabric)  # leads to no data
        self.server = method.tensors("shared", "server")
        self.server_state: OptimizerStates | None = None  # of its optimisers; before the first round there are none
        self.clients = Store()  # in host memory; before the first round it may be replaced by one with a limit
        self.memory: dict[int, dict[str, Tensor]] = {}
        method.memory = self.memory
        self.changed: dict[str, dict[int, int]] = {"clients": {}, "memory": {}}  # last rounds that changed them
        self.round = self.bytes_up = self.bytes_down = self.steps = self.skipped = 0
        self.summed: dict[str, Tensor] = {}
        self.averaged: dict[str, Any] | None = None
        self.confusion: Tensor | None = None

    @cached_property
    def class_counts(self) -> Tensor:
        """Images per client and class, labelled or not, ``[K, C]``; used only for metrics."""
        return torch.from_numpy(self.data.class_counts("labelled") + self.data.class_counts("unlabelled"))

    def run(self) -> None:
        """Run the remaining rounds, then evaluate the averaged model, if there is one.

        ``confusion`` is then that of the last round's model (``metrics.scores``).

        Raises:
            RunError: a hook fails, or numbers are not finite.
        """
        if self.round == 0:
            self.server_phase(0, first=True)
        while self.round < self.rounds:
            started = time.perf_counter()
            row = self.run_round(self.round)
            self.round += 1
            if row is not None:
                row["timing"] = {"seconds": round(time.perf_counter() - started, 4)}
                if taken := self.engine.counts():
                    row["timing"]["slots"] = taken
                self.log(row)
            for callback in self.callbacks:
                callback.on_round_end(self, row)
        if self.confusion is None:  # the run had been stopped after its last round
            self.evaluate(self.rounds - 1)
        if self.average_last:
            confusion = self.confusion
            self.averaged = self.evaluate_averaged()
            self.confusion = confusion
        for logger in self.fabric.loggers:
            logger.finalize("success")

    def run_round(self, number: int) -> dict[str, Any] | None:
        """Run one round; returns its row of metrics if it was evaluated."""
        visits = self.visits(number)
        uploads, results = self.run_visits(visits)
        for visit, result in results.items():
            self.steps += result.steps
            self.bytes_down += result.bytes_down
            self.bytes_up += 0 if result.upload is None else result.upload.num_bytes
            if result.counts:
                self.changed["clients"][visit.client] = number
            else:
                self.skipped += 1
        self.become_server()
        self.method.visit = self.engine.context.visit(number, SERVER, self.data.server)
        logged_at_server = [("in aggregate", self.aggregate(uploads, number))] if uploads else []
        logged_at_server.append(("in server_step", self.server_phase(number)))
        if number >= self.rounds - self.average_last:
            self.add_to_average()
        with self.engine.hook_context("log", number):
            sums = sum_logged((f"by client {v.client}", result.sums) for v, result in results.items() if result.counts)
            sums |= {f"server/{name}": value for name, value in sum_logged(logged_at_server).items()}
        if (number + 1) % self.eval_every and number + 1 < self.rounds:
            return None
        with self.engine.hook_context("is_warmup", number):
            warmup = {"warmup": True} if self.method.is_warmup(number) else {}
        return {
            "round": number,
            **warmup,
            **self.evaluate(),
            **recorded_means(sums),
            "participants": len({v.client for v in visits}),
            "visits": len(visits),
            "steps": self.steps,
            **({"skipped": self.skipped} if self.skipped else {}),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def visits(self, number: int) -> list[Visit]:
        """Who takes part: the round's visits, cohort by cohort."""
        context, visits, seen = self.engine.context, [], Counter[int]()
        with self.engine.hook_context("select_clients", number):
            cohorts = hooks.cohorts(self.method.select_clients(number, self.roster), self.data.num_clients)
        for cohort, clients in enumerate(cohorts):
            for client in clients:
                site, repeat = self.data.client(client), seen[client]
                first = repeat == 0 and client not in self.clients
                visits.append(context.visit(number, client, site, cohort=cohort, repeat=repeat, first=first))
                seen[client] += 1
        return visits

    def run_visits(self, visits: Sequence[Visit]) -> tuple[list[Upload], dict[Visit, VisitResult]]:
        """Each client is sent the model, trains and uploads; visits are shared among processes by client.

        Returns:
            uploads that count and results, in (client id, repeat) order and in every process, so that the number of
            processes changes no bit.
        """
        engine, ranks, rank = self.engine, self.fabric.world_size, self.fabric.global_rank
        # If each visit starts from what the one before it left, all are made by the first process.
        shares = [list(visits), *[[]] * (ranks - 1)] if engine.sequential else collectives.assign(visits, ranks)
        shared = {name: self.server[name] for name in self.method.names("shared")}
        joint = collectives.JointMean(self.fabric, shared) if self.joins_sums else None

        def own_visits() -> tuple[dict[Visit, VisitResult], OptimizerStates]:
            results = engine.run_visits(shares[rank], self.server, self.clients)
            if joint is not None:
                results = {v: result._replace(upload=joint.take(result.upload)) for v, result in results.items()}
            return results, engine.shared_optimizer_state if shares[rank] else []

        gathered: dict[Visit, VisitResult] = {}
        for rank_results, optimizer_state in collectives.gather_results(self.fabric, own_visits):
            gathered |= rank_results
            engine.shared_optimizer_state = optimizer_state or engine.shared_optimizer_state
        if ranks > 1:
            self.exchange_states(shares)
        results = {visit: gathered[visit] for visit in sorted(gathered, key=lambda visit: (visit.client, visit.repeat))}
        uploads = [result.upload for result in results.values() if result.counts and result.upload is not None]
        uploads = uploads if joint is None else [joint.for_server(upload) for upload in uploads]
        return uploads, results

    def exchange_states(self, shares: Sequence[Sequence[Visit]]) -> None:
        """Give all processes the states of the clients that each has visited (``shares``), few in one message."""
        clients = [list(dict.fromkeys(visit.client for visit in share)) for share in shares]
        for start in range(0, max(map(len, clients)), CLIENTS_PER_MESSAGE):
            block = clients[self.fabric.global_rank][start : start + CLIENTS_PER_MESSAGE]
            message = {client: self.clients[client] for client in block if client in self.clients}
            for rank, states in enumerate(collectives.all_gather(self.fabric, message)):
                if rank != self.fabric.global_rank:
                    self.clients.update(states)

    def become_server(self) -> None:
        """Load the server's tensors into the module; nothing of the last client remains."""
        self.method.load_tensors({**self.engine.initial, **self.server})

    def aggregate(self, uploads: Sequence[Upload], number: int) -> Sums:
        """The server turns uploads into its next model, and keeps what it remembers; returns what was logged."""
        tally = self.method._engine.tally = Tally()
        with self.engine.hook_context("aggregate", number):
            aggregate: Callable[[Sequence[Upload]], object] = self.method.aggregate
            if aggregate(uploads) is not None:
                raise RunError("it returned a value, which would be lost; change self, as with self.load_tensors(...)")
        self.method._engine.tally = None
        with self.engine.hook_context("remember", number):
            kept = hooks.remembered(self.method.remember(uploads), self.data.num_clients)
        self.memory.update(kept)
        self.changed["memory"].update(dict.fromkeys(kept, number))
        return tally.taken()

    def server_phase(self, number: int, first: bool = False) -> Sums:
        """Run the server's step, then refresh static norm statistics; returns what was logged.

        The module is the server already, except before the first round (``first``).
        """
        if first:
            self.become_server()
        result, states = self.engine.run_server(number, self.server_state, first)
        self.steps += result.steps
        registered = self.method.registered()
        own = {name: registered[name] for name in self.method.names("shared", "server")}
        server, self.server_state, logged = collectives.from_first(self.fabric, (own, states, result.sums))
        if server is not own:  # devices may round differently: all take the first process's model
            self.method.load_tensors(server)
        with self.engine.hook_context("refresh_norm", number):
            self.method.refresh_norm(self.data)
        self.server = self.method.tensors("shared", "server")
        return logged

    @torch.inference_mode()
    def evaluate(self, number: int | None = None) -> dict[str, Any]:
        """Metrics of the global model on the whole test set (4 decimals), sharded over ranks.

        A ``predict`` that draws has the random stream of round ``number``; default: the present one.

        ``acc_by_class`` has the accuracy on each class (2 decimals; ``None`` for a class without test images). The
        matrix behind it is kept in ``confusion``. The module is the server.
        """
        self.method.eval()
        number = self.round if number is None else number
        with self.engine.hook_context("predict", number), self.method.autocast():
            blocks = (block for _, block in self.data.test_blocks(self.method.eval_batch))
            probabilities = torch.cat(self.spread(lambda block: self.method.predict(block()), blocks))
            hooks.require_shape(probabilities, [len(self.data.test_labels), self.data.num_classes])
        self.engine.seats[0].train_mode()
        metrics, self.confusion = scores(probabilities, self.data.test_labels)
        by_class = class_accuracies(self.confusion)
        if self.data.knows_all:
            metrics |= client_accuracies(by_class, self.class_counts)
        rounded = [None if isnan(share) else round(share, 2) for share in by_class.tolist()]
        return {name: round(score, 4) for name, score in metrics.items()} | {"acc_by_class": rounded}

    def evaluate_averaged(self) -> dict[str, Any]:
        """The reading ``averaged``: the number of ``rounds`` and the metrics of their averaged model.

        All that the server holds is averaged (scopes ``shared`` and ``server``), since ``predict`` may read either.
        The module is the server before and after.
        """
        mean = {name: (total / self.average_last).to(self.server[name].dtype) for name, total in self.summed.items()}
        self.method.load_tensors({**self.server, **mean})
        reading = self.evaluate()
        self.become_server()
        return {"rounds": self.average_last, **reading}

    def add_to_average(self) -> None:
        """Add the server's tensors to their sums over the last rounds, in float64; whole numbers are not averaged."""
        wide = {name: value.to(torch.float64) for name, value in self.server.items() if value.is_floating_point()}
        self.summed = {name: self.summed[name] + value if self.summed else value for name, value in wide.items()}

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass an evaluated round to Fabric's loggers, which write it at once."""
        values = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "round"}
        self.fabric.log_dict(values, step=row["round"])
        for logger in self.fabric.loggers:
            logger.save()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next round depends on. Later rounds make new tensors and leave these alone."""
        return {
            "round": self.round,
            "server": self.server,
            "clients": self.clients.saved(),
            "memory": dict(self.memory),
            "changed": {part: dict(rounds) for part, rounds in self.changed.items()},
            "handed_on": self.engine.shared_optimizer_state,
            "server_state": self.server_state,
            "bytes": (self.bytes_up, self.bytes_down),
            "steps": self.steps,
            "skipped": self.skipped,
            "summed": self.summed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken; the module becomes the server, as it was then."""
        device = self.fabric.device
        self.round = state["round"]
        self.server = collectives.to_device(state["server"], device)
        self.clients.clear()
        self.clients.update({client: ClientState(*kept) for client, kept in state["clients"].items()})
        self.memory.clear()
        self.memory.update(collectives.to_device(state["memory"], device))
        self.changed = {"clients": {}, "memory": {}, **state.get("changed", {})}
        self.engine.shared_optimizer_state = collectives.to_device(state["handed_on"], device)
        self.server_state = state["server_state"]
        self.bytes_up, self.bytes_down = state["bytes"]
        self.steps, self.skipped = state["steps"], state["skipped"]
        self.summed = collectives.to_device(state["summed"], device)
        self.become_server()

"""A seat: a copy of the method that becomes one client after another."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmark.federation import hooks
from benchmark.federation.holdings import Holdings
from benchmark.federation.metrics import Sums
from benchmark.federation.optimizers import OptimizerStates, cloned
from benchmark.federation.replay import Replay
from benchmark.federation.site import ClientState, LocalSite, RunContext, Sent, VisitResult, stream_of
from datamodules.base import SiteData
from datamodules.common import streams as random_streams
from datamodules.common.errors import RunError
from datamodules.views.batches import LocalWork
from methods.base import FedMethod, Tally, Visit
from methods.models.backbone import draw_from
from methods.parts.engine_state import EngineState, RegisteredTensors


class Seat:
    """A copy of the method whose tensors stay at the same place: the state of each client is copied into them.

    Args:
        method: the copy; during a visit it is that client.
        context: what all visits have in common.
        initial: the method's tensors at the beginning of the run, by name.
        own_stream: whether it works in a stream of its own on a GPU.
        replay: whether its steps are recorded once and replayed.
    """

    def __init__(
        self,
        method: FedMethod,
        context: RunContext,
        initial: Mapping[str, Tensor],
        own_stream: bool = False,
        replay: bool = False,
    ) -> None:
        self.method, self.context, self.initial = method, context, initial
        device = context.data.device
        self.tally, self.hidden = Tally(), Tally()  # what the method logs, and what only the engine may know
        self.generator = torch.Generator(device=device)
        self.holdings = Holdings(context.data.num_images, device)
        self.sizes = set[int]()  # of clients that it has been
        method._engine = EngineState(context.autocast, context.scaler(), tensors=RegisteredTensors(method))
        draw_from(method, self.generator)
        if not method.training:  # it was put into evaluation mode after it was built
            method.train()
        self.always_eval = [part for part in method.modules() if not part.training]
        self.frozen = method.names("frozen")
        self.shared = {name: initial[name] for name in method.names("shared")}
        self.accelerator: Any = torch.get_device_module(device) if own_stream and device.type != "cpu" else None
        self.stream = self.accelerator.Stream(device) if self.accelerator else None
        tallies = (self.tally, self.hidden)
        self.replay = Replay(method, self.generator, tallies, self.stream) if replay else None

    def begin_visit(self, visit: Visit, sent: Sent, state: ClientState | None) -> tuple[LocalSite, LocalWork]:
        """The copy becomes the client: it loads what was sent and what the client kept, and prepares local work."""
        method, state = self.method, state or ClientState()
        if self.stream is not None:
            self.stream.wait_stream(self.accelerator.current_stream(self.context.data.device))
        with self.turn(visit):
            site = self.site(self.context.data.client(visit.client), visit, state.optimizers)
            method.load_tensors({**self.initial, **sent.tensors, **state.tensors})
            self.attach(visit)
            self.train_mode()
            work = method.local_work(site)
            self.train_mode()
        return site, work

    def train(self, site: LocalSite, work: LocalWork) -> Iterator[None]:
        """Take all steps of the visit; yields after each."""
        fit = site.prepare_fit(len(work))
        step = self.replay.begin(fit) if self.replay else None
        yield from fit.run(len(work), lambda number: site.batches(work, number), step)
        site.keep(fit)
        if step is not None:  # recorded steps go on writing into the tensors of the state
            site.optimizer_states = [[cloned(state) for state in own] for own in site.optimizer_states]

    def goes_on(self, steps: Iterator[None], visit: Visit) -> bool:
        """Take the next of a visit's steps; returns whether there was one."""
        with self.turn(visit):
            return next(steps, "done") is None

    def end_visit(self, site: LocalSite, sent: Sent) -> tuple[VisitResult, ClientState]:
        """The client uploads; returns the result of the visit and what the client keeps."""
        method = self.method
        with self.turn(site.visit):
            made = method.make_upload(site)
            self.check_visit()
            upload = hooks.upload(made, site.visit, self.shared, method.registered())
            result = VisitResult(upload, self.detach(), sent.bytes, site.steps)
            kept = ClientState(method.tensors("personal"), site.optimizer_states)
        if self.stream is not None:
            self.accelerator.current_stream(self.context.data.device).wait_stream(self.stream)
        return result, kept

    def site(self, data: SiteData, visit: Visit, states: OptimizerStates) -> LocalSite:
        """The site of a visit; ``states`` are those that its optimisers start from."""
        return LocalSite(self.method, self.context, data, visit, states, self.hidden, self.holdings)

    def attach(self, visit: Visit) -> None:
        """Connect the copy to a visit: its tally, its generator, freshly seeded."""
        method = self.method
        self.tally.clear()
        self.hidden.clear()
        self.generator.manual_seed(random_streams.derive_seed(self.context.seed, *stream_of(visit)))
        method.visit, method.generator, method._engine.tally = visit, self.generator, self.tally

    def detach(self) -> Sums:
        """Disconnect the copy from the visit; returns what was logged."""
        self.method._engine.tally = self.method.trainer = None
        return self.tally.taken() | self.hidden.taken()

    def train_mode(self) -> None:
        """Training mode for all parts but those that were built in evaluation mode, as in a fit of Lightning's."""
        self.method.train()
        for part in self.always_eval:
            part.training = False

    def check_visit(self) -> None:
        """Refuse a visit that has broken a rule unnoticed; it has no result then.

        Raises:
            RunError: a registered tensor was replaced, a frozen one was changed, or the method asked about another
                site's images.
        """
        hooks.in_place(self.method)
        registered = self.method.registered()
        for name in self.frozen:
            if not torch.equal(registered[name], self.initial[name]):
                raise RunError(
                    f"{name!r} was changed, but counts as frozen, which is not sent: it came without a gradient, or in "
                    "evaluation mode. Give it another scope in `scopes`"
                )
        self.holdings.require_own()

    @contextmanager
    def turn(self, visit: Visit) -> Iterator[None]:
        """Within it, work is done on the seat's stream, and errors name the method, client and round."""
        with self.on_stream(), hooks.errors_at(hooks.location(visit), self.method):
            yield

    def on_stream(self) -> AbstractContextManager[Any]:
        """On a GPU, the context of the seat's own stream, if it has one."""
        return nullcontext() if self.stream is None else self.accelerator.stream(self.stream)

"""Small federations on real digits, for tests: those of the contract, smaller data, plain methods, single visits."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from lightning import Fabric
from torch import Tensor

from benchmark.contract.attributes import different
from benchmark.contract.federations import (
    NUM_CLIENTS,
    SCENARIOS,
    SIDE,
    FewerDigits,
    Subject,
    brief,
    class_of,
    half_trained,
    make_data,
    make_federation,
    make_method,
    plain_fabric,
    rounds_until,
)
from benchmark.federation.loop import Federation
from benchmark.federation.site import ClientState, LocalSite, VisitResult
from benchmark.registry import parameters
from datamodules.base import FSSLDataModule, Scenario
from datamodules.digits import Digits
from few_digits import FewDigits
from methods.base import FedMethod, Pass, Stream, Tally, Visit

FEWEST_LABELS = {"server": {"num_labels": 20}, "all_clients": {"num_labels": 40}}
"""Numbers of labels among ``FewestDigits``, by scenario."""


class FewestDigits(FewerDigits):
    """The first 96 training and 30 test images: a handful of steps for each client."""

    kept = (96, 30)


def few_data(clients: int, labelled: int | None = None, kind: type[Digits] = FewDigits, **args: Any) -> Digits:
    """Set up ``FewDigits`` with clients of which ``labelled`` (default: all) hold labels."""
    counts = {"num_clients": clients, "labelled_clients": labelled or clients}
    data = kind(**{**counts, "partition": "iid", "side": SIDE, **args})
    data.setup()
    return data


def fewest_data(clients: int, labelled: int | None = None, **args: Any) -> Digits:
    """Set up ``FewestDigits``, in images of 16 pixels."""
    return few_data(clients, labelled, FewestDigits, **{"side": 16, **args})


def few_in(scenario: Scenario, **args: Any) -> Digits:
    """Set up ``FewDigits`` in a scenario, with the contract's options of it."""
    return few_data(NUM_CLIENTS, **{"scenario": scenario, **SCENARIOS[scenario], **args})


def contract_federation(method: str | type, data: FSSLDataModule | None = None, **args: Any) -> Federation:
    """The federation that the contract's checks run."""
    return Subject(method).federation(data, **args)


def fewest_for(method: str | type) -> Digits:
    """Set up ``FewestDigits`` in the scenario that a method is made for, with its own ``contract_data``."""
    cls = class_of(method)
    return Subject(cls, FewestDigits).data(**{**FEWEST_LABELS.get(cls.scenario, {}), **cls.contract_data})


def tiny_federation(method: str | type, fabric: Fabric | None = None, **engine: Any) -> Federation:
    """Two short rounds from half-trained weights, on any device, in batches of 8 and smaller last ones.

    Args:
        method: name, dotted path or class.
        fabric: launched; default: the CPU.
        engine: arguments of the ``Federation``.
    """
    fabric = fabric or plain_fabric()
    smaller = {"batch_size": 8} if "batch_size" in parameters(class_of(method)) else {}
    made = make_method(method, weights=half_trained(), **(brief(method) | smaller))
    data = fewest_for(method)
    data.place(fabric.device, torch.float32)
    return Federation(made, data, data.roster(0), fabric, rounds=2, seed=0, **engine)


class Supervised(FedMethod):
    """Cross-entropy on labels, with everything at its default."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self(batch["labelled"]["x"]), batch["labelled"]["y"])


class Unaugmented(Supervised):
    """The same on images that are not augmented."""

    views = {"labelled": {"x": "test"}}


def few_federation(
    cls: type = Unaugmented, clients: int = 1, labelled: int | None = None, rounds: int = 2, **args: Any
) -> Federation:
    """A federation on the first digits."""
    return make_federation(cls, few_data(clients, labelled), rounds, **args)


def trained(cls: type, **args: Any) -> Federation:
    """A federation of three clients after two rounds."""
    federation = few_federation(cls, 3, **args)
    run_rows(federation)
    return federation


def run_rows(federation: Federation) -> list[dict[str, Any]]:
    """Run to the end and return the rows without their timing."""
    rows: list[dict[str, Any]] = []

    def keep(_: Federation, row: dict[str, Any] | None) -> None:
        if row is not None:
            rows.append({name: value for name, value in row.items() if name != "timing"})

    federation.callbacks = [*federation.callbacks, SimpleNamespace(on_round_end=keep)]
    federation.run()
    return rows


def same_tensors(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether both have the same names, and the same bits under each."""
    return not different(a, b)


def same_server(a: Federation, b: Federation) -> bool:
    """Whether the servers of two runs hold the same bits."""
    return same_tensors(a.server, b.server)


def site_of(federation: Federation, visit: Visit | None = None) -> LocalSite:
    """Return the site of a client's visit; default: client 0 in round 0."""
    data = federation.data.client(visit.client if visit else 0)
    return federation.engine.seats[0].attach(visit or Visit(size=data.size), data, [])


def sums_of(method: FedMethod) -> Tally:
    """Let a method log outside a run, too; return its sums, which start empty."""
    method._engine.tally = tally = Tally()
    return tally


def visited(federation: Federation, visit: Visit, state: ClientState | None = None) -> tuple[VisitResult, ClientState]:
    """One visit by the federation's engine: what came of it, and what the client keeps."""
    return federation.engine.run_visit(visit, federation.engine.send(visit, federation.server), state)


def images(count: int = 6, seed: int = 1) -> Tensor:
    """Random images of 16 pixels, in double precision."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 16, 16, generator=g, dtype=torch.float64)


def fit_on(run: Federation, client: int, fields: dict[str, Tensor], **visit: Any) -> None:
    """One step of a client on these fields without labels, or of the server (-1) on these with labels."""
    data = run.data.server if client < 0 else run.data.client(client)
    site = run.engine.seats[0].attach(Visit(client=client, size=data.size, **visit), data, [])
    index = torch.cat([data.labelled, data.unlabelled])[: len(fields["x"])]  # the fields bring the images themselves
    walk = Stream(index, len(index), {}, fields, shuffle=False)
    site.fit([Pass({"labelled" if client < 0 else "unlabelled": walk})])

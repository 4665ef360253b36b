"""Agreement of engines and devices with the reference engine, by method."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmark.config import RunConfig
from benchmark.perf.federations import config_of, federation_of
from benchmark.perf.measure import attempt
from benchmark.registry import KINDS, find_class, handed_over, typed_args
from methods.base import FedMethod

ROUNDS, SLOTS, IMAGES, CLIENTS, BATCH = 2, 3, 250, 6, 16
PRECISIONS = ("64-true", "32-true")
ENGINES: dict[str, dict[str, Any]] = {
    "reference": {},
    "slots": {"slots": SLOTS, "replay": False},
    "slots, replay": {"slots": SLOTS, "replay": True},
}
OTHERS = [name for name in ENGINES if name != "reference"]
HOLDERS: dict[str, dict[str, Any]] = {
    "partial_clients": {"labelled_clients": 2},
    "server": {"num_labels": 40, "pipeline": "randaugment_uniform"},
    "all_clients": {"num_labels": 120, "pipeline": "randaugment_levels_cutout"},
}
SHORT = ("warmup_rounds", "server_pretrain", "server_epochs", "local_epochs")
FLOWING = {
    "threshold": 0.1003,
    "pl_threshold": 0.1003,
    "confidence_gate": 0.05,
    "entropy_gate": 5.0,
    "helper_every": 1,
    "lambda_s": 1.0,  # ten times a loss is more than a network without norms can bear
    "lambda_l2": 1.0,
    "projector_width": 64,
}
HEADERS = [
    "method",
    *(f"{name} - CPU, {p}" for p in PRECISIONS for name in ENGINES),
    *(f"{name} - GPU, {PRECISIONS[0]}" for name in OTHERS),
]
"""Column names of ``row``: an engine on the GPU, and the reference's device and precision."""
NOTE = (
    f"Global models after {ROUNDS} rounds on {IMAGES} random images: {CLIENTS} clients, batches of {BATCH} and ragged "
    f"ones, small CNN, {SLOTS} slots, thresholds that untrained networks reach. `equal`: the same bits; a number: the "
    "distance from the reference over the distance that training has covered. Against the CPU every image has one "
    "fixed view; what a method itself draws on the device still differs. TF32 is off."
)


def configured(method: str, precision: str = "32-true") -> RunConfig:
    """Configure a short run of a method in its scenario: one warm-up round, one epoch, with pseudo-labels."""
    cls: type[FedMethod] = find_class(method, KINDS["method"])
    known = typed_args(cls, {}, "method", handed_over(cls, "method"))
    short: dict[str, Any] = {name: 1 for name in SHORT if (known.get(name) or 0) > 1}
    short |= {"batch_size": BATCH} | {name: value for name, value in FLOWING.items() if name in known}
    held = {"images": IMAGES, "scenario": cls.scenario, "num_clients": CLIENTS} | HOLDERS[cls.scenario]
    return config_of(method, short, held, rounds=ROUNDS, eval_every=ROUNDS, precision=precision)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Switch TF32 in matrix products and convolutions off while the context is open."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def ends(method: str, precision: str, device: str = "cpu", **options: Any) -> tuple[Tensor, Tensor]:
    """Return the global model before and after a run as float64 vectors; for the options see ``federation_of``."""
    with without_tf32():
        made = federation_of(configured(method, precision), device, **options)

        def numbers() -> Tensor:
            return torch.cat([t.double().cpu().flatten() for t in made.server.values()])

        before = numbers()
        made.run()
        return before, numbers()


def distance(reference: tuple[Tensor, Tensor], after: Tensor) -> str | float:
    """Distance of a run's final model from the reference run's."""
    began, ended = reference
    return "equal" if torch.equal(ended, after) else float((after - ended).norm() / (ended - began).norm())


def compared(method: str, precision: str, engines: list[str], reference: dict[str, Any], **options: Any) -> list[Any]:
    """Cells with each engine's distance from the reference engine run with the options ``reference``."""
    began = attempt(lambda: ends(method, precision, **reference))
    if isinstance(began, str):
        return [began] * len(engines)

    def cell(name: str) -> str | float:
        return distance(began, ends(method, precision, **ENGINES[name], **options)[1])

    return [attempt(partial(cell, name)) for name in engines]


def row(method: str, device: str) -> list[Any]:
    """Row of a method's engines on a device: against the reference on the CPU, then on the device."""
    cells: list[Any] = [method]
    for p in PRECISIONS:
        cells += compared(method, p, list(ENGINES), {"same_views": True}, device=device, same_views=True)
    return [*cells, *compared(method, PRECISIONS[0], OTHERS, {"device": device}, device=device)]

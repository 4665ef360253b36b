"""How far other engines and devices end from the reference engine on the CPU, by method."""

from typing import Any

import torch
from lightning import Fabric
from torch import Tensor

from benchmark.config import RunConfig, resolve
from benchmark.federation.loop import Federation
from benchmark.federation.stacked import unstackable
from benchmark.perf.measure import Section, probe
from benchmark.registry import KINDS, ClassSpec, find_class, known_names, typed_args, without_default
from benchmark.run import make
from methods.base import FedMethod

ROUNDS, CLIENTS = 2, 6
PRECISIONS = ("64-true", "32-true")
HOLDERS: dict[str, dict[str, Any]] = {
    "partial_clients": {"labelled_clients": 2},
    "server": {"num_labels": 40, "pipeline": "randaugment_uniform"},
    "all_clients": {"num_labels": 120, "pipeline": "randaugment_levels_cutout"},
}
SHORT: dict[str, Any] = {"warmup_rounds": 1, "server_pretrain": 1, "local_epochs": 1, "threshold": 0.12, "mix": False}
NOTE = (
    f"Distance of the global models after {ROUNDS} rounds on digits ({CLIENTS} clients, small CNN, the same views "
    "everywhere, no mixup), over the distance that training has covered; -: the engine refuses the method. In double "
    "precision the work is the same; in single precision rounding grows with every step, fastest where weights are "
    "perturbed or labels are thresholded."
)


def configured(method: str, precision: str) -> RunConfig:
    """A short run of a method in the scenario it was made for, with thresholds that untrained networks reach."""
    cls: type[FedMethod] = find_class(method, KINDS["method"])
    known = typed_args(cls, {}, "method", KINDS["method"].supplied | without_default(cls))
    short = {name: value for name, value in SHORT.items() if name in known}
    held = {"scenario": cls.scenario, "num_clients": CLIENTS, "partition": "iid", **HOLDERS[cls.scenario]}
    config = RunConfig(ClassSpec(method, short), ClassSpec("digits", held), rounds=ROUNDS, precision=precision)
    return resolve(config)


def ends(method: str, precision: str, device: str = "cpu", stack: int | None = None) -> tuple[Tensor, Tensor]:
    """All numbers of the global model before and after a run, float64."""
    fabric = Fabric(accelerator=device, devices=1, precision=precision)  # type: ignore[arg-type]
    fabric.launch()
    config = configured(method, precision)
    made, data = make(config, fabric.device)
    data.views = dict.fromkeys(data.views, data.views["test"])  # random ones would differ between devices
    roster = data.roster(config.seed)
    federation = Federation(made, data, roster, fabric, ROUNDS, config.seed, eval_every=ROUNDS, stack=stack)
    before = _numbers(federation)
    federation.run()
    return before, _numbers(federation)


def section() -> list[Section]:
    """Every method; the engines on the CPU, and a GPU where there is one."""
    variants: dict[str, dict[str, Any]] = {"stacked": {"stack": CLIENTS}}
    if torch.cuda.is_available():
        variants |= {"GPU": {"device": "cuda"}, "GPU, stacked": {"device": "cuda", "stack": CLIENTS}}
    speed, rows = probe(), []
    for method in known_names(KINDS["method"]):
        row: list[Any] = [method]
        reference = {precision: ends(method, precision) for precision in PRECISIONS}
        refused = unstackable(make(configured(method, PRECISIONS[0]), torch.device("cpu"))[0])
        for options in variants.values():
            for precision, (before, after) in reference.items():
                if refused and "stack" in options:
                    row.append("-")
                    continue
                other = ends(method, precision, **options)[1]
                row.append(float((other - after).norm() / (after - before).norm()))
        rows.append(row)
    headers = ["method", *(f"{name}, {precision}" for name in variants for precision in PRECISIONS)]
    where = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return [Section(f"Agreement with the reference engine on the CPU{where}", headers, rows, NOTE, (speed, probe()))]


def _numbers(federation: Federation) -> Tensor:
    return torch.cat([t.double().cpu().flatten() for t in federation.server.values()])

"""Measurements on a GPU: whether the engines agree, and replay against the reference engine.

Every line is a task in a process of its own: one that fails becomes a line with the reason, and the others go on.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmark.config import RunConfig
from benchmark.contract.federations import brief, options_for
from benchmark.perf.measure import Section, alone, config_of, federation_of, seconds
from benchmark.registry import KINDS, find_class, known_names, parameters

LINE_S = 120.0
"""Seconds that a line may take."""
CLIENTS, BATCHES = 16, 4
ENGINES = {"slots": False, "slots, replay": True}
"""The engines that must agree with the reference, and whether they replay their steps."""


SLOTS, TRIAL_SLOTS = (1, 4, 8), (1, 2)
NETWORKS = [("small_cnn", 64), ("wrn28_2", 32), ("resnet9", 100), ("resnet18", 64)]
TRIAL_NETWORKS = [("small_cnn", 4)]
"""Networks, each with the images of a step. A trial tries the code on the CPU; its numbers mean nothing."""


def table(title: str, headers: Sequence[str], note: str, trial: bool) -> Section:
    """Create a table; its title names the device."""
    name = "trial on the CPU" if trial else torch.cuda.get_device_name()
    return Section(f"{title} ({name})", headers, note)


def row_of(label: Sequence[Any], task: Callable[..., list[Any]], *args: Any) -> list[Any]:
    """A line: its label and the results of a task, or the error."""
    try:
        return [*label, *alone(task, *args, allowed=LINE_S)]
    except TimeoutError:
        return [*label, f"failed: stopped after {LINE_S:.0f} s"]
    except Exception as error:
        return [*label, f"failed: {type(error).__name__}: {error}".splitlines()[0]]


def check_agreement(methods: Sequence[str], trial: bool) -> Iterator[Section]:
    """Check the engines against the reference on the same device; without ``methods`` for every known one."""
    note = (
        "Global models after two rounds on 250 random images in float64, under the contract's arguments, in batches of "
        "16 and ragged ones. `equal`: the same bits as in the reference engine; a number: the distance from it over "
        "the distance that training has covered."
    )
    section = table("Agreement of engines", ["method", *ENGINES], note, trial)
    for method in methods or known_names(KINDS["method"]):
        yield section.add(row_of([method], agreement, method, "cpu" if trial else "cuda"))


def agreement(method: str, device: str) -> list[Any]:
    """How far each engine ends from the reference engine."""
    began, ended = ends(method, device)
    others = [ends(method, device, slots=3, replay=replay)[1] for replay in ENGINES.values()]
    covered = (ended - began).norm()
    return ["equal" if torch.equal(ended, one) else float((one - ended).norm() / covered) for one in others]


def ends(method: str, device: str, **engine: Any) -> list[Tensor]:
    """The global model before and after a run as float64 vectors; ``engine``: see ``federation_of``."""
    cls: Any = find_class(method, KINDS["method"])
    sizes = {"batch_size": 16} if "batch_size" in parameters(cls) else {}
    data = {"images": 250, **options_for(cls)}
    config = config_of(method, sizes | brief(method), data, rounds=2, eval_every=2, precision="64-true")
    made, found = federation_of(config, device, **engine), []
    for _ in range(2):
        found.append(torch.cat([t.double().cpu().flatten() for t in made.server.values()]))
        made.run()
    return found


def time_engines(methods: Sequence[str], trial: bool) -> Iterator[Section]:
    """Time the reference and slots, by network, precision and number of slots."""
    note = (
        f"Milliseconds for the visits of {CLIENTS} clients of {BATCHES} full batches each, after a warm-up in which "
        "steps are recorded."
    )
    slots, networks = (TRIAL_SLOTS, TRIAL_NETWORKS) if trial else (SLOTS, NETWORKS)
    names = [f"K = {number}, ms" for number in slots]
    headers = ["network", "batch", "precision", "replay", "reference, ms", *names, "reference / best"]
    for method in methods or known_names(KINDS["method"]):
        section = table(f"Engines, visits of `{method}`", headers, note, trial)
        for precision, (network, batch), replay in product(("32-true", "bf16-mixed"), networks, (False, True)):
            data = {"images": CLIENTS * BATCHES * batch, "num_clients": CLIENTS, "labelled_clients": CLIENTS}
            config = config_of(method, {"batch_size": batch}, data, model=network, precision=precision)
            label = [network, batch, precision, "yes" if replay else "no"]
            yield section.add(row_of(label, engine_row, config, "cpu" if trial else "cuda", slots, replay))


def engine_row(config: RunConfig, device: str, slots: Sequence[int], replay: bool) -> list[Any]:
    """Measure a line."""
    engines: list[dict[str, Any]] = [{}, *({"slots": number, "replay": replay} for number in slots)]
    taken = [visits_ms(config, device, **engine) for engine in engines]
    return [*taken, taken[0] / min(taken[1:])]


def visits_ms(config: RunConfig, device: str, **engine: Any) -> float:
    """Milliseconds of the visits of a round, until the device has finished; ``engine``: see ``federation_of``."""
    made = federation_of(config, device, **engine)
    planned = made.visits(0)

    def work() -> None:
        made.engine.run_visits(planned, made.server, {})
        if device == "cuda":
            torch.cuda.synchronize()

    work()
    return 1000 * seconds(work)


PARTS = {"agreement": check_agreement, "engines": time_engines}

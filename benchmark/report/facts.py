"""What a table says of its runs: data, network, rounds, reading, hardware, code, and what is missing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmark.config import RunConfig
from benchmark.report.frame import BROKEN
from benchmark.runs.environment import hardware
from benchmark.runs.records import code_versions
from benchmark.suites.plan import Plan, Table
from benchmark.suites.suite import Suite

SAY = {
    "best": "the round of best test accuracy",
    "last": "the last round",
    "last_k_mean": "the mean of the last {last}",
    "averaged": "one model, the mean of the global weights of the last {averaged}",
}


def facts(
    suite: Suite, plan: Plan, table: Table, cells: Sequence[Mapping[str, Any]], constant: Mapping[str, str]
) -> dict[str, str]:
    """Facts about the runs of a table by name; a text without a name has the empty one.

    Args:
        suite: the suite.
        plan: its runs at one scale.
        table: one of its tables.
        cells: those of the table, of which ``network``, ``method`` and ``dataset`` are read.
        constant: columns in which no rows differ.
    """
    planned = [(row.dataset, key) for row in table.rows for key in plan.of_row.get(row.full_name, {}).values()]
    keys = dict.fromkeys(key for _, key in planned)
    configs = [plan.runs[key].config for key in keys]
    records = [record for key in keys if (record := plan.found[key].record) is not None]
    precisions = {config.precision for config in configs}
    last, averaged = _listed(map(last_rounds, configs)), _listed(map(averaged_rounds, configs))
    texts = {
        "data": _listed(config.data.name for config in configs),
        "metric": table.metrics[0] if len(table.metrics) == 1 else "",
        "network": _networks(cells),
        **{column.replace("_", " "): value for column, value in constant.items()},
        "scale": f"{plan.scale} ({suite.scale(plan.scale).note or 'own protocol'})",
        "rounds": _listed(sorted({config.rounds for config in configs})),
        "precision": _listed(sorted(precisions)) if precisions - {"32-true"} else "",
        "seeds": _listed(plan.seeds),
        "reading": SAY[suite.reading(plan.scale)].format(last=last, averaged=averaged),
        "hardware": _listed(sorted({hardware(record["environment"]) for record in records})) or "-",
        "code": _listed(sorted({version for record in records for version in code_versions(record)})) or "-",
    }
    digests: dict[tuple[str, str], set[str]] = {}
    for dataset, key in planned:
        for file, digest in ((plan.found[key].record or {}).get("data_sha256") or {}).items():
            digests.setdefault((dataset, file), set()).add(digest)
    several = (file for (_, file), of_file in sorted(digests.items()) if len(of_file) > 1)
    texts["**data of several versions**"] = _listed(several)
    if len(records) < len(keys):
        texts[""] = f"**{len(records)} of {len(keys)} runs complete**"
        for state in BROKEN:
            texts[state] = ", ".join(key for key in keys if plan.found[key].state == state)
    without = suite.scale(plan.scale).without
    left_out = [row.method for row in table.rows if row.method in without]
    texts["not at this scale"] = _listed(f"{label} ({without[label]})" for label in left_out)
    return texts


def _networks(cells: Sequence[Mapping[str, Any]]) -> str:
    """Name the network of most cells, then each other one with the methods and data sets of its cells."""
    cells_of: dict[str, list[str]] = {}
    for cell in cells:
        cells_of.setdefault(cell["network"], []).append(f"{cell['method']} on {cell['dataset']}")
    names = sorted(cells_of, key=lambda name: -len(cells_of[name]))
    return "; ".join([*names[:1], *(f"{name} ({_listed(cells_of[name])})" for name in names[1:])])


def _listed(values: Iterable[Any]) -> str:
    """Each value once, in order."""
    return ", ".join(dict.fromkeys(map(str, values)))


def network(config: RunConfig) -> str:
    """The trained network's name and arguments, e.g. ``resnet9 (width=4)``."""
    args = ", ".join(f"{name}={value}" for name, value in config.model_args.items())
    return f"{config.model} ({args})" if args else config.model


def last_rounds(config: RunConfig) -> str:
    """What ``last_k_mean`` averages: ``10 rounds``, or ``10 rounds (2 of them evaluated)``."""
    last = range(max(0, config.rounds - config.last_k) + 1, config.rounds + 1)  # counted from 1
    evaluated = [number for number in last if number % config.eval_every == 0 or number == config.rounds]
    rounds = _counted(len(last))
    return rounds if len(evaluated) == len(last) else f"{rounds} ({len(evaluated)} of them evaluated)"


def averaged_rounds(config: RunConfig) -> str:
    """What ``averaged`` averages, e.g. ``20 rounds``."""
    return _counted(min(config.average_last, config.rounds))


def _counted(rounds: int) -> str:
    return f"{rounds} round{'s' if rounds > 1 else ''}"

"""The schema of a suite file, checked when it is loaded, so that a mistake is reported with its place."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from benchmark.config import READINGS, SCALES
from benchmark.registry import unknown
from datamodules.common.errors import ConfigError

METRICS = ("acc", "acc_clients", "acc_worst_clients", "auc", "precision", "recall", "loss")
COLUMNS = (
    *("table", "dataset", "data", "network", "method", "metric", "ours", "std", "ci95", "n", "published", "spread"),
    *("value", "delta", "prediction", "effect", "effect_ci95", "effect_n", "effect_published", "status", "note"),
    *("best", "last", "last_k_mean", "averaged", "runs"),
)
"""Columns that the files of tables and of published values have besides those of rows."""
CONTROLS = "take it out, and name a table's `control`: verdicts rest on intervals of the seeds"
RETIRED = {"bands": CONTROLS, "band_note": CONTROLS}
TOLD = 3  # problems that one message lists

SCALARS = (str, int, float, bool, type(None))
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Unreported = Annotated[int, Field(ge=1000, lt=2**32)]
"""A seed that tuning or admission may use (RULES.md)."""


def _one_value(value: Any) -> Any:
    if not isinstance(value, SCALARS):
        raise ValueError("a column is a word or a number")
    return value


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Layer(_Part):
    set: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {}


class _Dataset(_Layer):
    pending: str = ""


class _Label(_Part):
    model_config = ConfigDict(extra="allow")
    method: str = ""
    minus: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    pending: str = ""


class _Row(_Part):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_one_value)]]
    method: str
    set: dict[str, Any] = {}
    judged_by: str | int = ""


class _Table(_Part):
    title: str
    datasets: Annotated[list[str], Field(min_length=1)]
    metrics: Annotated[list[str], Field(min_length=1)]
    rows: Annotated[list[_Row], Field(min_length=1)]
    set: dict[str, Any] = {}
    unpublished: str = "none"
    reference: str = ""
    bounds: list[str] = []
    control: str = ""
    controls: dict[str, str] = {}
    untuned: str = ""
    published_runs: Annotated[int, Field(ge=1)] = 1


class _PerDataset(_Layer):
    datasets: dict[str, _Layer] = {}


class _Tuning(_PerDataset):
    rates: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[list[Unreported], Field(min_length=1)]


class _Central(_PerDataset):
    labels: Annotated[list[str], Field(min_length=2, max_length=2)]
    tables: dict[str | int, _Layer] = {}


class _Admission(_Part):
    seeds: Annotated[list[Unreported], Field(min_length=1)]
    central: _Central


class _Scale(_Layer):
    seeds: Annotated[list[Seed], Field(min_length=1)]
    compare: bool = False
    note: str = ""
    tables: dict[str | int, _PerDataset] = {}
    datasets: dict[str, _Layer] = {}
    tuning: _Tuning | None = None
    admission: _Admission | None = None
    without: dict[str, str] = {}


class _Suite(_Part):
    model_config = ConfigDict(extra="allow")
    paper: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    title: str
    published: str | None
    report: str
    base: _Layer
    datasets: dict[str, _Dataset | None]
    labels: dict[str, _Label | None]
    tables: Annotated[dict[str | int, _Table], Field(min_length=1)]
    scales: Annotated[dict[str, _Scale], Field(min_length=1)]
    ranked: bool = False
    replaced: list[str] = []
    reported: list[str] = []


def check(spec: Mapping[str, Any], where: str) -> None:
    """Check the content of a suite file: keys, types, ranges, and that every name is defined in the file.

    Args:
        spec: the content. A top-level key that is unlike all known ones may hold YAML anchors.
        where: the file, for the message.

    Raises:
        ConfigError: lists the first mistakes with their places, and suggests names.
    """
    for key in spec:
        if key in RETIRED:
            raise ConfigError(f"{where}: `{key}` is no longer known; {RETIRED[key]}")
        if key not in _Suite.model_fields and get_close_matches(str(key), _Suite.model_fields, n=1, cutoff=0.75):
            raise unknown("key", key, _Suite.model_fields, f" ({where})")
    try:
        suite = _Suite.model_validate(dict(spec))
    except ValidationError as error:
        problems = [_told(problem, spec) for problem in error.errors()]
        more = f"; and {len(problems) - TOLD} more" if len(problems) > TOLD else ""
        raise ConfigError(f"{where}: {'; '.join(problems[:TOLD])}{more}") from None
    _check_names(suite, where)


def _check_names(suite: _Suite, where: str) -> None:
    """Check that names of methods, labels, data sets, tables, metrics and scales exist, and that rows are unique."""
    numbers = [str(number) for number in suite.tables]
    named = {label.method for label in suite.labels.values() if label and label.method}
    methods = {name for method in named for name in with_its_method(method)}
    _known("scale", suite.scales, SCALES, where)
    layers: dict[str, _Layer] = {"base": suite.base}
    layers |= {f"datasets.{name}": layer for name, layer in suite.datasets.items() if layer}
    for name, scale in suite.scales.items():
        layers[f"scales.{name}"] = scale
        layers |= {f"scales.{name}.datasets.{data}": layer for data, layer in scale.datasets.items()}
        _known("data set label", scale.datasets, suite.datasets, f"{where}, scale {name}")
        parts: dict[str, _PerDataset] = {f"scales.{name}.tables.{key}": part for key, part in scale.tables.items()}
        parts |= {f"scales.{name}.tuning": scale.tuning} if scale.tuning else {}
        if scale.admission:
            central, place = scale.admission.central, f"scales.{name}.admission.central"
            parts[place] = central
            layers |= {f"{place}.tables.{key}": layer for key, layer in central.tables.items()}
            _known("method label", central.labels, suite.labels, f"{where}, {place}.labels")
            _known("table", map(str, central.tables), numbers, f"{where}, {place}")
        for place, part in parts.items():
            layers[place] = part
            layers |= {f"{place}.datasets.{data}": layer for data, layer in part.datasets.items()}
            _known("data set label", part.datasets, suite.datasets, f"{where}, {place}")
        _known("table", map(str, scale.tables), numbers, f"{where}, scale {name}")
        _known("method label", scale.without, suite.labels, f"{where}, scale {name}, without")
        choosing = {"tuning": scale.tuning, "admission": scale.admission}
        seeds = {"seeds": scale.seeds} | {f"{key}.seeds": one.seeds for key, one in choosing.items() if one}
        for key, given in seeds.items():
            if len(set(given)) < len(given):
                raise ConfigError(f"{where}: scales.{name}.{key} has a seed twice: {given}")
            if both := key != "seeds" and {*given} & {*scale.seeds}:
                raise ConfigError(f"{where}: scales.{name}.{key} has {min(both)}, which scale {name} reports")
    for place, layer in layers.items():
        if suite.labels:
            _known("method", layer.methods, methods, f"{where}, {place}.methods")
    for name, label in suite.labels.items():
        if label and label.minus:
            _known("method label", label.minus, suite.labels, f"{where}, labels.{name}.minus")
        elif not (label and (label.method or label.pending)):
            raise ConfigError(f"{where}: labels.{name} needs a method, or minus, or pending")
    every = []
    for number, table in suite.tables.items():
        place, labels = f"{where}, table {number}", [row.method for row in table.rows]
        _known("method label", labels, suite.labels, place)
        _known("data set label", table.datasets, suite.datasets, place)
        compared = [*table.bounds, *table.controls, *table.controls.values()]
        compared += filter(None, [table.reference, table.control])
        _known("row that others are compared with", compared, labels, place)
        judges = [str(row.judged_by) for row in table.rows if row.judged_by != ""]
        _known("table", judges, numbers, f"{place}, judged_by")
        _known("metric", [metric for metric in table.metrics if "/" not in metric], METRICS, place)
        _once("data set", table.datasets, place)
        for name in dict.fromkeys(name for row in table.rows for name in row.model_extra or {}):
            if name in COLUMNS:
                raise ConfigError(f"{place}: rows have a column `{name}`, as the table's files have already; rename it")
        rows = [[row.method, *sorted(f"{k}={v}" for k, v in (row.model_extra or {}).items())] for row in table.rows]
        _once("row", labels if table.reference else map("/".join, rows), place)  # a board's rows differ by label alone
        every += ["/".join([str(number), data, *row]) for data in table.datasets for row in rows]
    _once("row", every, where)
    _known("report", [suite.report], READINGS, where)
    _known("method label", suite.reported, suite.labels, f"{where}, reported")


def with_its_method(name: str) -> list[str]:
    """The entries of a layer's ``methods`` that a method takes its options from.

    These are its own, and before it, for an ablation in ``methods/ablations/<method>.py``, that of its method.
    """
    _, ablation, rest = name.partition("methods.ablations.")
    return [rest.partition(".")[0], name] if ablation else [name]


def _known(what: str, names: Iterable[str], known: Iterable[str], where: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise unknown(what, name, known, f" ({where})")


def _once(what: str, names: Iterable[str], where: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"{where}: the {what} {twice[0]} stands there twice; one would hide the other")


def _told(problem: Any, spec: Mapping[str, Any]) -> str:
    """One of pydantic's problems in words: its place in the file, what is wrong, and the value."""
    place, value = ".".join(str(part) for part in problem["loc"]), problem["input"]
    if problem["type"] == "extra_forbidden":
        model = _model_at(problem["loc"][:-1])
        close = get_close_matches(str(problem["loc"][-1]), model.model_fields, n=1, cutoff=0.5)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        return f"{place} is unknown{hint} Known: {', '.join(model.model_fields)}"
    if problem["type"] == "missing":
        return f"{place} is missing"
    shown = f"{value!r}" if isinstance(value, SCALARS) or not value else f"a {type(value).__name__}"
    message = re.sub(r" or instance of _\w+| after validation|^Value error, ", "", problem["msg"])
    message = f"{message[0].lower()}{message[1:]}".replace("dictionary", "mapping")
    return f"{place}: {message} (it is {shown})"


def _model_at(place: tuple[str | int, ...]) -> type[BaseModel]:
    """The part of the schema that a place in the file belongs to."""
    parts: dict[str, type[BaseModel]] = {"datasets": _Dataset, "labels": _Label, "tables": _Table, "scales": _Scale}
    if place[0] == "base":
        return _Layer
    if place[0] == "scales" and len(place) > 2:
        if place[2:] == ("tuning",):
            return _Tuning
        if place[2] == "admission":
            return _Central if place[3:] == ("central",) else _Admission
        return _PerDataset if place[2] == "tables" and len(place) == 4 else _Layer
    return parts.get(str(place[0]), _Suite)

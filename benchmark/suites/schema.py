"""The schema of a suite file, checked when it is loaded, and how one file extends another."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from benchmark.config import Reading, Scale
from benchmark.registry import unknown
from benchmark.runs.records import problem
from datamodules.common.errors import ConfigError

METRICS = ("acc", "acc_clients", "acc_worst_clients", "auc", "precision", "recall", "loss")
COLUMNS = (
    *("table", "dataset", "data", "network", "method", "metric", "ours", "std", "ci95", "n", "published", "spread"),
    *("value", "delta", "prediction", "effect", "effect_ci95", "effect_prediction", "effect_n", "effect_published"),
    *("status", "note"),
    *("best", "last", "last_k_mean", "averaged", "runs"),
)
"""Columns that the files of tables and of published values have besides those of rows."""
TOLD = 3  # problems that one message lists


def _one_of(kind: str) -> BeforeValidator:
    """Accept only names of this kind that the file itself has; numbers become words."""

    def check(name: Any, info: ValidationInfo) -> str:
        known = (info.context or {})[kind]
        if str(name) not in known:
            raise ValueError(str(unknown(kind, name, known)))
        return str(name)

    return BeforeValidator(check)


def _distinct(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"twice: {value}; one would hide the other")
    return values


def _metric(name: str) -> str:
    if name not in METRICS and "/" not in name:
        raise ValueError(str(unknown("metric", name, METRICS)))
    return name


Word = Annotated[str, BeforeValidator(str)]
TableName = Annotated[str, _one_of("table")]
LabelName = Annotated[str, _one_of("method label")]
DataName = Annotated[str, _one_of("data set label")]
MethodName = Annotated[str, _one_of("method")]
Pair = Annotated[list[LabelName], Field(min_length=2, max_length=2)]
Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1), AfterValidator(_distinct)]
Unreported = Annotated[list[Annotated[int, Field(ge=1000, lt=2**32)]], Field(min_length=1), AfterValidator(_distinct)]
"""Seeds that tuning or admission may use (RULES.md)."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Layer(_Part):
    set: dict[str, Any] = {}
    methods: dict[MethodName, dict[str, Any]] = {}


class _Dataset(_Layer):
    pending: str = ""


class _Label(_Part):
    model_config = ConfigDict(extra="allow")
    method: str = ""
    minus: Pair | None = None
    pending: str = ""

    @model_validator(mode="after")
    def _is_something(self) -> "_Label":
        if not (self.method or self.minus or self.pending):
            raise ValueError("it needs a method, or minus, or pending")
        return self


class _Row(_Part):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Word]
    method: LabelName
    set: dict[str, Any] = {}

    @model_validator(mode="after")
    def _has_own_columns(self) -> "_Row":
        if taken := {*(self.model_extra or {})} & {*COLUMNS}:
            raise ValueError(f"the table's files have a column `{min(taken)}` already; rename it")
        return self


class _Table(_Part):
    title: str
    datasets: Annotated[list[DataName], Field(min_length=1), AfterValidator(_distinct)]
    metrics: Annotated[list[Annotated[str, AfterValidator(_metric)]], Field(min_length=1)]
    rows: Annotated[list[_Row], Field(min_length=1)]
    set: dict[str, Any] = {}
    unpublished: str = "none"
    reference: str = ""
    bounds: list[str] = []
    control: str = ""
    controls: dict[str, str] = {}
    untuned: str = ""
    published_runs: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _has_distinct_rows(self) -> "_Table":
        labels = [row.method for row in self.rows]
        for label in (self.reference, self.control, *self.bounds, *self.controls, *self.controls.values()):
            if label and label not in labels:
                raise ValueError(str(unknown("row that others are compared with", label, labels)))
        rows = [[row.method, *sorted(f"{k}={v}" for k, v in (row.model_extra or {}).items())] for row in self.rows]
        _distinct(labels if self.reference else ["/".join(row) for row in rows])  # a board's rows differ by label
        return self


class _PerDataset(_Layer):
    datasets: dict[DataName, _Layer] = {}


class _Tuning(_PerDataset):
    rates: Annotated[list[str], Field(min_length=1)]
    seeds: Unreported


class _Central(_PerDataset):
    labels: Pair
    tables: dict[TableName, _Layer] = {}


class _Admission(_Part):
    seeds: Unreported
    central: _Central


class _Scale(_PerDataset):
    seeds: Seeds
    report: Reading | None = None
    compare: bool = False
    note: str = ""
    tables: dict[TableName, _PerDataset] = {}
    tuning: _Tuning | None = None
    admission: _Admission | None = None
    without: dict[LabelName, str] = {}

    @model_validator(mode="after")
    def _reports_other_seeds(self) -> "_Scale":
        for entry in (self.tuning, self.admission):
            if entry and (both := {*entry.seeds} & {*self.seeds}):
                raise ValueError(f"seed {min(both)} is reported, and tuning or admission uses it")
        return self


class _Suite(_Part):
    model_config = ConfigDict(extra="allow")
    paper: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    title: str
    published: str | None
    report: Reading
    base: _Layer
    datasets: dict[str, _Dataset | None]
    labels: dict[str, _Label]
    tables: Annotated[dict[Word, _Table], Field(min_length=1)]
    scales: Annotated[dict[Scale, _Scale], Field(min_length=1)]
    ranked: bool = False
    replaced: list[str] = []


def check(spec: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the content of a suite file: keys, types, ranges, and that every name is defined in the file.

    Args:
        spec: the content. A top-level key that is unlike all known ones may hold YAML anchors.
        where: the file, for the message.

    Returns:
        The content with all defaults; numbers of tables are words.

    Raises:
        ConfigError: lists the first mistakes with their places, and suggests names.
    """
    for key in spec:
        if key not in _Suite.model_fields and get_close_matches(str(key), _Suite.model_fields, n=1, cutoff=0.75):
            raise unknown("key", key, _Suite.model_fields, f" ({where})")
    labels = _mapping(spec.get("labels"))
    methods = [str(label.get("method")) for label in map(_mapping, labels.values())]
    known = {
        "method label": list(labels),
        "data set label": list(_mapping(spec.get("datasets"))),
        "table": [str(number) for number in _mapping(spec.get("tables"))],
        "method": [name for method in methods for name in with_its_method(method)],
    }
    try:
        return _Suite.model_validate(dict(spec), context=known).model_dump()
    except ValidationError as error:
        raise ConfigError(f"{where}: {problem(error, TOLD)}".replace(".[key]", "")) from None


def with_its_method(name: str) -> list[str]:
    """The entries of a layer's ``methods`` that a method takes its options from.

    These are its own, and before it, for an ablation in ``methods/ablations/<method>.py``, that of its method.
    """
    _, ablation, rest = name.partition("methods.ablations.")
    return [rest.partition(".")[0], name] if ablation else [name]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def on_top(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` on top of ``base``: mappings are merged, rows of a table appended, other values replaced."""
    result = {str(key): value for key, value in base.items()}
    for key, value in ((str(key), value) for key, value in own.items()):
        before = result.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[key] = on_top(before, value)
        elif key == "rows" and isinstance(before, list) and isinstance(value, list):
            result[key] = [*before, *value]
        else:
            result[key] = value
    return result


def with_untuned(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec with each table ``untuned: NAME`` filled in: the rows of the table NAME without its controls.

    They have its options at every scale, and nothing that tuning has chosen, since they are rows of another table.
    """
    tables, scales = dict(spec.get("tables", {})), dict(spec.get("scales", {}))
    for name, own in tables.items():
        if not (isinstance(own, Mapping) and own.get("untuned") in tables):
            continue
        of = tables[own["untuned"]]
        controls = of.get("controls", {}).values()
        rows = [row for row in of["rows"] if row["method"] not in controls]
        tables[name] = {key: of[key] for key in ("datasets", "metrics", "set") if key in of} | {**own, "rows": rows}
        for scale, entry in scales.items():
            at = entry.get("tables", {})
            if own["untuned"] in at:
                scales[scale] = {**entry, "tables": {**at, name: at[own["untuned"]]}}
                entry = scales[scale]
    return {**spec, "tables": tables, "scales": scales} if tables and scales else spec

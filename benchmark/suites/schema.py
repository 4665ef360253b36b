"""The schema of a suite file, checked when it is loaded, and how one file extends another."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from benchmark.config import Reading, Scale
from benchmark.runs.records import problem
from datamodules.common.errors import ConfigError, unknown

METRICS = ("acc", "acc_clients", "acc_worst_clients", "auc", "precision", "recall", "loss")


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
Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1), AfterValidator(_distinct)]
Unreported = Annotated[list[Annotated[int, Field(ge=1000, lt=2**32)]], Field(min_length=1), AfterValidator(_distinct)]
"""Seeds that tuning or admission may use (RULES.md)."""


class _Part(BaseModel, extra="forbid", strict=True):
    """A part of a suite file: no entry that is unknown here, no value of another type."""


class Layer(_Part):
    """Options of all rows, and further ones of the rows of some methods."""

    set: dict[str, Any] = {}
    methods: dict[MethodName, dict[str, Any]] = {}


class _PerDataset(Layer):
    datasets: dict[DataName, Layer] = {}


class Layers(_PerDataset):
    """Options by table and data set."""

    tables: dict[TableName, _PerDataset] = {}

    def of(self, table: str, dataset: str) -> list[Layer]:
        """Those of a row, of which a later one wins: all rows', its table's, its data set's, and that of both."""
        of_table = self.tables.get(table, _PerDataset())
        return [self, of_table, self.datasets.get(dataset, Layer()), of_table.datasets.get(dataset, Layer())]


class _Label(_Part, extra="allow"):  # options of its rows
    method: str = ""


class _Row(_Part, extra="allow"):  # columns that tell it apart
    __pydantic_extra__: dict[str, Word]
    method: LabelName
    set: dict[str, Any] = {}


class TableSpec(_Part):
    """What is said of a table, beside its rows.

    Args:
        title: what it shows.
        metrics: names of its metrics.
        reference: label that the others are compared with, in a suite that ranks methods.
        bounds: labels of rows that use more information than a method may; they are not ranked.
        control: label of the row that effects are measured against; empty if the table has none.
        controls: by label of a row, that of the row which is its own step with the unlabelled loss switched off.
        untuned: the table whose rows these are, at the rates of their papers; none for a table of its own.
        published_runs: number of runs behind a published value.
    """

    title: str
    metrics: list[Annotated[str, AfterValidator(_metric)]] = []
    reference: str = ""
    bounds: list[str] = []
    control: str = ""
    controls: dict[str, str] = {}
    untuned: str | None = None
    published_runs: Annotated[int, Field(ge=1)] = 1


class _Table(TableSpec):
    datasets: Annotated[list[DataName], AfterValidator(_distinct)] = []
    rows: list[_Row] = []
    set: dict[str, Any] = {}
    untuned: TableName | None = None

    @model_validator(mode="after")
    def _has_distinct_rows(self) -> "_Table":
        for name in ("datasets", "metrics", "rows"):
            if not (getattr(self, name) or self.untuned):
                raise ValueError(f"it has no {name}")
        labels = [row.method for row in self.rows]
        for label in (self.reference, self.control, *self.bounds, *self.controls, *self.controls.values()):
            if label and label not in labels:
                raise ValueError(str(unknown("row that others are compared with", label, labels)))
        rows = [[row.method, *sorted(f"{k}={v}" for k, v in (row.model_extra or {}).items())] for row in self.rows]
        _distinct(labels if self.reference else ["/".join(row) for row in rows])  # a board's rows differ by label
        return self


class Tuning(Layers):
    """The trials of ``tune``."""

    rates: Annotated[list[str], Field(min_length=1)]
    seeds: Unreported


class Central(Layers):
    """The two rows of a test of admission that have all data in one place."""

    labels: Annotated[list[LabelName], Field(min_length=2, max_length=2)]


class Admission(_Part):
    """The test of ``admit``."""

    seeds: Unreported
    central: Central


class ScaleSpec(Layers):
    """A version of the suite: its network, rounds and seeds."""

    seeds: Seeds
    report: Reading | None = None
    compare: bool = False
    note: str = ""
    tuning: Tuning | None = None
    admission: Admission | None = None
    without: dict[LabelName, str] = {}

    @model_validator(mode="after")
    def _reports_other_seeds(self) -> "ScaleSpec":
        for entry in (self.tuning, self.admission):
            if entry and (both := {*entry.seeds} & {*self.seeds}):
                raise ValueError(f"seed {min(both)} is reported, and tuning or admission uses it")
        return self


class SuiteSpec(_Part, extra="allow"):  # YAML anchors
    """The content of a suite file."""

    paper: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    title: str
    published: str | None
    report: Reading
    base: Layer
    datasets: dict[str, Annotated[Layer, BeforeValidator(lambda layer: {} if layer is None else layer)]]
    labels: dict[str, _Label]
    tables: Annotated[dict[Word, _Table], Field(min_length=1)]
    scales: Annotated[dict[Scale, ScaleSpec], Field(min_length=1)]
    ranked: bool = False

    @model_validator(mode="after")
    def _fill_untuned(self) -> "SuiteSpec":
        """Give each table ``untuned: NAME`` the rows of the table NAME without its controls, at every scale."""
        for name, table in self.tables.items():
            if table.untuned:
                tuned = self.tables[table.untuned]
                table.rows = [row for row in tuned.rows if row.method not in tuned.controls.values()]
                table.datasets, table.metrics = table.datasets or tuned.datasets, table.metrics or tuned.metrics
                table.set = table.set or tuned.set
                for scale in self.scales.values():
                    if table.untuned in scale.tables:
                        scale.tables.setdefault(name, scale.tables[table.untuned])
        return self


def check(spec: Mapping[str, Any], where: str) -> SuiteSpec:
    """Check the content of a suite file: keys, types, ranges, and that every name is defined in the file.

    Args:
        spec: the content. A top-level key that is unlike all known ones may hold YAML anchors.
        where: the file, for the message.

    Raises:
        ConfigError: lists the first mistakes with their places, and suggests names.
    """
    for key in spec:
        if key not in SuiteSpec.model_fields and get_close_matches(str(key), SuiteSpec.model_fields, n=1, cutoff=0.75):
            raise unknown("key", key, SuiteSpec.model_fields, f" ({where})")
    parts = {key: spec[key] if isinstance(spec.get(key), Mapping) else {} for key in ("labels", "datasets", "tables")}
    methods = [str(label.get("method")) for label in parts["labels"].values() if isinstance(label, Mapping)]
    known = {
        "method label": list(parts["labels"]),
        "data set label": list(parts["datasets"]),
        "table": [str(number) for number in parts["tables"]],
        "method": [name for method in methods for name in with_its_method(method)],
    }
    try:
        return SuiteSpec.model_validate(dict(spec), context=known)
    except ValidationError as error:
        raise ConfigError(f"{where}: {problem(error, most=3)}".replace(".[key]", "")) from None


def with_its_method(name: str) -> list[str]:
    """The entries of a layer's ``methods`` that a method takes its options from.

    These are its own, and before it, for an ablation in ``methods/ablations/<method>.py``, that of its method.
    """
    _, ablation, rest = name.partition("methods.ablations.")
    return [rest.partition(".")[0], name] if ablation else [name]


def on_top(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """``top`` on top of ``base``: mappings are merged, rows of a table appended, other values replaced.

    A ``null`` in place of a mapping, such as a table, leaves it out.
    """
    result = {str(key): value for key, value in base.items()}
    for name, value in top.items():
        key = str(name)
        before = result.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            result[key] = on_top(before, value)
        elif value is None and isinstance(before, Mapping):
            del result[key]
        elif key == "rows" and isinstance(before, list) and isinstance(value, list):
            result[key] = [*before, *value]
        else:
            result[key] = value
    return result


def without_tables(part: Any, gone: Collection[str]) -> Any:
    """A part of a suite file without tables, and without what its scales say of them."""
    if not isinstance(part, Mapping):
        return part
    kept = {key: without_tables(value, gone) for key, value in part.items()}
    if isinstance(kept.get("tables"), Mapping):
        kept["tables"] = {name: table for name, table in kept["tables"].items() if str(name) not in gone}
    return kept

"""What a run is: a complete, typed configuration and its identity.

A configuration names a method, a data set and a model, and holds every number that affects the result.
``Run.of`` fills in the defaults of the method and the data set, so that the saved ``config.yaml`` reproduces the run;
``run_id`` hashes what differs from the defaults.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmark.registry import KINDS, ClassSpec, build, converted, find_class, imported, known_names, path_of, resolved
from datamodules.common.errors import ConfigError, one_line
from datamodules.common.precision import check_precision

if TYPE_CHECKING:
    from datamodules.base import FSSLDataModule

Scale = Literal["quick", "board", "laptop", "small", "lite", "paper", "custom"]
Reading = Literal["best", "last", "last_k_mean", "averaged"]
GIVEN = ("model_args.", "roster.")


def _check_least(options: Any, **least: int) -> None:
    for name, number in least.items():
        value = getattr(options, name)
        if value != "auto" and value < number:
            raise ConfigError(f"{name} is {value}; it must be at least {number}")


@dataclass(frozen=True)
class Runtime:
    """Where and how a run is executed; nothing here is part of its identity.

    Args:
        devices: processes per machine (GPUs, or CPU processes). ``auto``: one, or SLURM's tasks. On a CPU, small
            networks are fastest with one process per core.
        accelerator: ``cpu``, ``cuda`` or ``auto``: a GPU where there is one.
        num_nodes: number of machines.
        threads: CPU threads per process, or ``auto``. Only runs with equal threads are equal bit for bit.
        engine: ``reference``: a process trains its clients one after the other; ``slots``: clients take turns in
            copies of the method, and a training step is recorded once and replayed (on a GPU as a CUDA graph).
        slots: copies of the method in the engine ``slots``.
        replay: whether the engine ``slots`` records and replays its steps.
        client_memory: GB of host memory per process for what clients keep between visits; the rest goes to files in the
            run's folder. ``auto``: the process's share of a quarter of the memory that is free when the run starts, or
            when several runs at once (``--jobs``) start.
        logger: what also receives every evaluated round: ``tensorboard``, ``wandb``, or both, separated by a comma.
            They write to the run's folder.
        callbacks: dotted paths of Lightning callbacks, separated by commas; each visit of a client is a fit to them.
        data_dir: folder with the data sets and their caches.
        results_dir: folder that holds ``runs/`` and ``tables/``.
        checkpoint_every_s: minimum number of seconds between checkpoints; they are rarer if saving would take more than
            2 % of the time. 0 saves after every round.
        wandb: mirror to Weights & Biases: ``auto`` (without ``WANDB_MODE`` and ``--logger wandb``: off at scale quick
            and without a key, else online), ``online``, ``offline`` or ``off``. Its environment variables name project,
            entity, group, run and tags.
    """

    devices: int | Literal["auto"] = "auto"
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    num_nodes: int = 1
    threads: int | Literal["auto"] = "auto"
    engine: Literal["reference", "slots"] = "reference"
    slots: int = 4
    replay: bool = True
    client_memory: float | Literal["auto"] = "auto"
    logger: str | None = None
    callbacks: str | None = None
    data_dir: str = "data"
    results_dir: str = "results"
    checkpoint_every_s: float = 60.0
    wandb: Literal["auto", "online", "offline", "off"] = "auto"

    def __post_init__(self) -> None:
        _check_least(self, devices=1, num_nodes=1, threads=1, slots=1, client_memory=0, checkpoint_every_s=0)
        for name in ("data_dir", "results_dir"):
            path = str(getattr(self, name))
            if path.startswith("~"):
                raise ConfigError(
                    f"{name}={path}: only a shell replaces ~, after a space and not after =; write the folder out"
                )


@dataclass(frozen=True)
class RunConfig:
    """One run. Everything except ``runtime`` affects its numbers or how they are read, and is part of its identity.

    Args:
        method: the method and its hyperparameters.
        data: the data set, its partition and its pipeline.
        model: name of the network, or its dotted path; the error for an unknown name lists all.
        model_args: arguments of the network.
        rounds: number of rounds.
        seed: seed of all draws but those with one of their own, such as ``data.partition_seed``.
        scale: a label in the record (``quick``, ``small``, ``laptop``, ``lite``, ``board``, ``paper`` or ``custom``);
            it changes no option.
        roster: arguments of the roster, which says who takes part in a round.
        eval_every: evaluate after every so many rounds (and after the last one).
        last_k: the reading ``last_k_mean`` averages those of the last so many rounds that were evaluated.
        report: the reading that tables use: ``best`` (round of best test accuracy), ``last`` (``final`` in records),
            ``last_k_mean`` or ``averaged``.
        average_last: the reading ``averaged`` is that of one model, the mean of the global weights of the last so many
            rounds (all, if the run is shorter), evaluated once after the last round. 0: no such reading.
        precision: ``32-true``, ``64-true`` or ``bf16-mixed``.
        nonfinite: what to do with a client's update whose loss or tensors are not finite: ``stop`` ends the run with an
            error, ``skip`` leaves the update out of the aggregate and counts it (``skipped``).
        sums: how clients' models are averaged: ``ordered`` sends all of them to every process, which adds them up in
            the order of the clients; ``by_rank`` adds them up in this order where they were trained, and sends only
            the sums, unless the method needs single clients' models. The results differ by rounding
            (docs/performance.md).
        runtime: where and how to run.
    """

    method: ClassSpec
    data: ClassSpec
    model: str = "small_cnn"
    model_args: dict[str, Any] = field(default_factory=dict)
    rounds: int = 12
    seed: int = 1337
    scale: Scale = "custom"
    roster: dict[str, Any] = field(default_factory=dict)
    eval_every: int = 1
    last_k: int = 50
    report: Reading = "best"
    average_last: int = 0
    precision: str = "32-true"
    nonfinite: Literal["stop", "skip"] = "stop"
    sums: Literal["ordered", "by_rank"] = "ordered"
    runtime: Runtime = field(default_factory=Runtime)

    def __post_init__(self) -> None:
        _check_least(self, rounds=1, eval_every=1, last_k=1, average_last=0)
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed is {self.seed}; it must be 0 to 2^32 - 1")
        check_precision(self.precision)
        if self.report == "averaged" and not self.average_last:
            raise ConfigError("report is averaged, but nothing is averaged: give average_last, a number of rounds")


DEFAULTS = RunConfig(ClassSpec(""), ClassSpec(""))
"""The defaults of a configuration, besides the classes."""


@dataclass(frozen=True)
class Run:
    """A run whose configuration is resolved and checked. All code that executes a run, or looks for it, takes one.

    ``Run.of`` makes one from a configuration. It names classes by their paths, so it can be sent to another process.

    Args:
        id: its ``run_id``.
        config: its configuration, resolved.
        cells: names of the table rows that it is for, or else a description of it, if any; see ``name``.
    """

    id: str
    config: RunConfig
    cells: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, *cells: str) -> "Run":
        """The run that a configuration describes.

        Raises:
            ConfigError: unknown class or argument (with the closest known one), or a value of the wrong type.
        """
        filled = resolve(config)
        return cls(run_id(filled), filled, cells)

    def replace(self, **changes: Any) -> "Run":
        """The run with another ``seed``, ``scale``, ``precision``, ``rounds`` or ``runtime``: none needs resolving."""
        config = replace(self.config, **changes)
        return Run(self.id if set(changes) == {"runtime"} else run_id(config), config, self.cells)

    @property
    def name(self) -> str:
        """The row that it is for, and the number of others; without a row, its method and data set."""
        first, *others = self.cells or (f"{self.config.method.name} on {self.config.data.name}",)
        return f"{first} +{len(others)}" if others else first

    @cached_property
    def folder(self) -> Path:
        """The folder of its files: ``<results_dir>/runs/<method>-<data>-<run id>``."""
        name = f"{self.config.method.name}-{self.config.data.name}-{self.id}".replace("/", "_")
        return Path(self.config.runtime.results_dir) / "runs" / name

    def class_of(self, slot: str) -> type:
        """The class that ``method`` or ``data`` names."""
        return find_class(getattr(self.config, slot).class_path, KINDS[slot])

    def make_data(self) -> "FSSLDataModule":
        """The data module, not yet set up."""
        return build(self.config.data, "data", data_dir=self.config.runtime.data_dir, run_seed=self.config.seed)


def identity(config: RunConfig) -> dict[str, Any]:
    """A configuration without ``runtime``, as a record has it: the content of ``config.yaml``."""
    plain = asdict(config)
    del plain["runtime"]
    return json.loads(json.dumps(plain))


def run_id(config: RunConfig) -> str:
    """First 10 hex digits of the SHA-256 of the canonical JSON of what the run changes from the defaults.

    Giving a default of the method, the data set or the run explicitly does not change it, and neither does an option
    that is added to the code later, so records keep their identity as long as their numbers mean the same. A record
    made under other defaults is refused when it is opened (``differences``). Options of the network and of the roster
    count as they are given. Those not given are not recorded, so their defaults must not change.
    """
    plain: dict[str, Any] = {}
    for slot, kind in KINDS.items():
        spec: ClassSpec = getattr(config, slot)
        cls = find_class(spec.class_path, kind)
        defaults = _defaults(cls, slot).items()
        changed = {name: value for name, value in spec.init_args.items() if (name, value) not in defaults}
        plain[slot] = {"class_path": path_of(cls), "init_args": changed}
    others = {f.name for f in fields(RunConfig)} - {*KINDS, "runtime"}
    plain |= {name: getattr(config, name) for name in others if getattr(config, name) != getattr(DEFAULTS, name)}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def differences(recorded: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Where a recorded identity and a resolved configuration are ``apart``: ``option: recorded with ..., now ...``."""
    changed = apart(recorded, identity(config))
    return [f"{name}: recorded with {old}, now {new}" for name, (old, new) in changed.items()]


def apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options in which two recorded identities differ, with both values: ``{"method.lr": (0.1, 0.3)}``.

    An option that only one of them has was added or removed since, and does not count. Those of network and roster are
    recorded only where they are given, so that one which is missing, here ``None``, counts.
    """
    old, new = as_options(first), as_options(second)
    names = [name for name in old | new if name.startswith(GIVEN) or (name in old and name in new)]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def as_options(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """An identity as options of the command line: ``{"method.lr": 0.1, "rounds": 12, ...}``."""
    options: dict[str, Any] = {}
    for key, value in values.items():
        name = path if key == "init_args" else f"{path}.{key}" if path else key
        options |= as_options(value, name) if isinstance(value, Mapping) else {name: value}
    return options


@cache
def _defaults(cls: type, slot: str) -> dict[str, Any]:
    return resolved(ClassSpec(path_of(cls)), slot).init_args


def resolve(config: RunConfig) -> RunConfig:
    """The same run with dotted class paths and every default of the method and the data set filled in.

    Raises:
        ConfigError: unknown class or argument (with the closest known one), or a value of the wrong type.
    """
    specs: dict[str, Any] = {slot: resolved(getattr(config, slot), slot) for slot in KINDS}
    return replace(config, **specs, roster=roster_args(config.roster) if config.roster else {})


def roster_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the roster, converted to its types.

    Raises:
        ConfigError: one that it does not have, or that the run passes to it, or a value of the wrong type.
    """
    supplied = ("num_clients", "labelled", "seed")
    return converted(imported("datamodules.partition.roster.Roster"), given, "roster", supplied)


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """A configuration from plain data; ``method`` and ``data`` may be given as a bare name.

    Raises:
        ConfigError: a value is no plain data, is not finite or contains itself, or is of the wrong type; an unknown
            field, or a value out of range.
    """
    values = _mapping(values, "configuration")
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        what = "use finite numbers, texts, lists and mappings only"
        raise ConfigError(f"configuration: {one_line(error)}; {what}") from None
    specs: dict[str, Any] = {slot: class_spec(slot, values.pop(slot, None)) for slot in KINDS}
    runtime = _mapping(values.pop("runtime", None), "runtime")
    rest = converted(RunConfig, values, "configuration", {*specs, "runtime"})
    return RunConfig(**specs, **rest, runtime=Runtime(**converted(Runtime, runtime, "runtime")))


def apply(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A plain configuration with options, named as on the command line, on top.

    ``{"method": "mine"}`` names the class (its arguments stay), ``{"method.lr": 0.1}`` sets an argument,
    ``{"roster.participants": 5}`` an entry of a mapping, ``{"rounds": 10}`` a field.
    """
    result = dict(values)
    for option, value in options.items():
        head, _, tail = option.partition(".")
        if head in KINDS:
            spec = result[head] = _as_spec(head, result.get(head))
            if tail:
                spec["init_args"][tail] = value
            else:
                spec["class_path"] = value
        elif tail:
            result[head] = {**_mapping(result.get(head), head), tail: value}
        else:
            result[head] = value
    return result


def with_pipeline(values: Mapping[str, Any]) -> dict[str, Any]:
    """A plain configuration with the pipeline that its method names (``FedMethod.pipeline``).

    Nothing changes if it has a pipeline already, or if the data set has a default of its own, such as feature vectors.
    """
    method, data = class_spec("method", values.get("method")), class_spec("data", values.get("data"))
    pipeline = find_class(method.class_path, KINDS["method"]).pipeline  # type: ignore[attr-defined]
    if pipeline is None or "pipeline" in data.init_args:
        return dict(values)
    default = _defaults(find_class(data.class_path, KINDS["data"]), "data").get("pipeline")
    base_default = _defaults(imported(KINDS["data"].base), "data")["pipeline"]
    return apply(values, {"data.pipeline": pipeline}) if default == base_default else dict(values)


def class_spec(slot: str, value: Any) -> ClassSpec:
    """A class and its arguments, from a mapping or from a bare name."""
    spec = _as_spec(slot, value)
    if not spec["class_path"]:
        raise ConfigError(f"--{slot} is missing; it is one of {', '.join(known_names(KINDS[slot]))}, or a dotted path")
    return ClassSpec(**spec)


def _as_spec(slot: str, value: Any) -> dict[str, Any]:
    given = _mapping(value, slot) if isinstance(value, Mapping) else {"class_path": value}
    if stray := set(given) - {f.name for f in fields(ClassSpec)}:
        raise ConfigError(f"{slot}: unknown: {', '.join(sorted(stray))}; give class_path and init_args")
    if not isinstance(given.get("class_path"), str | None):
        raise ConfigError(f"{slot}: {given['class_path']!r} is no name of a class; give e.g. --{slot} NAME")
    return {"class_path": None, **given, "init_args": _mapping(given.get("init_args"), f"{slot}.init_args")}


def _mapping(value: Any, where: str) -> dict[str, Any]:
    """A copy of a mapping of names to values; ``None`` becomes an empty one.

    Raises:
        ConfigError: it is something else, or a key is no name.
    """
    if not isinstance(value, Mapping | None) or not all(isinstance(key, str) for key in value or ()):
        raise ConfigError(f"{where} is {value!r}; give a mapping of names to values")
    return dict(value or {})

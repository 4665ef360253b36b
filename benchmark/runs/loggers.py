"""Lightning loggers beside a run's own files, and the mirror in Weights & Biases; neither can break a run."""

import netrc
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from lightning.fabric.loggers.csv_logs import CSVLogger
from lightning.fabric.loggers.logger import Logger
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback

from benchmark.config import Run, Runtime, identity
from benchmark.registry import one_line, unknown
from benchmark.runs.records import AVERAGED, BY_CLASS, READINGS
from datamodules.common.errors import ConfigError
from datamodules.common.plugins import plugin

PROJECT = "fssl-bench"
Mode = Literal["off", "offline", "online"]
IN_A_VISIT = (Callback, LambdaCallback)
"""Lightning's own callbacks that a visit can serve."""
LOGGERS: Mapping[str, Callable[..., Logger]] = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}


def names(given: str | None) -> list[str]:
    """Split names separated by commas."""
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def lightning_loggers(given: str | None, folder: Path) -> list[Logger]:
    """Create the loggers named by ``--logger`` for ``Fabric``, except ``wandb`` (see ``Mirror``).

    Args:
        given: ``csv``, ``tensorboard`` and ``wandb``, separated by commas.
        folder: folder of the run; each logger writes to its own subfolder.

    Raises:
        ConfigError: a name is unknown, or a logger's package is missing.
    """
    made = []
    for name in names(given):
        if name == "wandb":
            continue
        if name not in LOGGERS:
            raise unknown("logger", name, [*LOGGERS, "wandb"])
        try:
            made.append(LOGGERS[name](root_dir=folder, name=name, version=""))
        except ModuleNotFoundError as error:
            raise ConfigError(f"--logger {name}: {one_line(error)}") from None
    return made


def callback_classes(given: str | None) -> dict[str, type[Callback]]:
    """The Lightning callbacks given to ``--callbacks`` as dotted paths.

    Raises:
        ConfigError: one cannot be imported, is no Lightning callback, or is one of Lightning's own that needs a
            ``Trainer``.
    """
    found = {path: plugin(path, f"--callbacks {path}") for path in names(given)}
    for path, cls in found.items():
        if not (isinstance(cls, type) and issubclass(cls, Callback)):
            raise ConfigError(f"--callbacks {path}: this is not a subclass of lightning.pytorch.Callback")
        for base in cls.__mro__:
            if base.__module__.startswith("lightning.pytorch.callbacks.") and base not in IN_A_VISIT:
                raise ConfigError(
                    f"--callbacks {path}: {base.__name__} needs a whole Trainer, and a client's visit has none; "
                    "docs/usage/python.md says which callbacks work, and what does the work of the others"
                )
    return found


def callbacks(given: str | None) -> list[Callback]:
    """Create the Lightning callbacks given to ``--callbacks``.

    Raises:
        ConfigError: as ``callback_classes`` does, or one cannot be created without arguments.
    """
    made = []
    for path, cls in callback_classes(given).items():
        try:
            made.append(cls())
        except Exception as error:
            raise ConfigError(f"--callbacks {path}: {error}; it must work without arguments") from None
    return made


def choose_mode(wanted: str, scale: str, asked: bool = False) -> Mode:
    """Resolve ``off``, ``offline``, ``online`` or ``auto`` to a mode.

    ``auto`` follows ``WANDB_MODE`` if it is set. Otherwise scale ``quick`` is not mirrored (starting W&B takes longer
    than such a run), and other scales are online if W&B has a key and off without one. If W&B was explicitly ``asked``
    for, it is online with a key and offline without, at every scale.
    """
    modes: dict[str, Mode] = {"off": "off", "disabled": "off", "offline": "offline", "online": "online"}
    default: Mode = "offline" if asked else "off"
    if (asked or scale != "quick") and _has_key():
        default = "online"
    said = os.environ.get("WANDB_MODE", "").lower() if wanted == "auto" else wanted
    return modes.get(said or default, "offline")


def mirror_run(run: Run, path: Path) -> "Mirror":
    """Create the mirror of a run in folder ``path``; resumes the same W&B run.

    With ``--logger wandb`` scale quick is mirrored, too.
    """
    config = run.config
    asked = "wandb" in names(config.runtime.logger)
    mode = choose_mode(config.runtime.wandb, config.scale, asked)
    name = f"{config.method.name} {config.data.name} seed {config.seed}"
    place = _place(config.runtime, config.scale)
    return Mirror(mode, path, id=run.id, name=name, config=identity(config), **place)


def mirror_tables(
    runtime: Runtime, scale: str, name: str, frames: Mapping[str, Any], figures: Mapping[str, Any] | None = None
) -> None:
    """Send rendered tables (data frames by name) as ``wandb.Table``, and matplotlib's figures by name as images.

    Args:
        runtime: says whether to send and to which project.
        scale: of the suite.
        name: of the tables' files: the paper, the scale and, where it is not the suite's, the precision.
        frames: the tables.
        figures: the figures.
    """
    mode, folder = choose_mode(runtime.wandb, scale), Path(runtime.results_dir)
    place = _place(runtime, scale)
    with Mirror(mode, folder, id=f"tables-{name}", name=f"tables {name}", **place) as mirror:
        mirror.tables({f"{name}/table {number}": frame for number, frame in frames.items()})
        mirror.figures({f"{name}/{title}": figure for title, figure in (figures or {}).items()})


def _place(runtime: Runtime, scale: str) -> dict[str, Any]:
    """Project and group of a run in W&B; ``None`` leaves a value to W&B's environment variables."""
    return {
        "project": runtime.wandb_project or os.environ.get("WANDB_PROJECT") or PROJECT,
        "entity": runtime.wandb_entity,
        "group": runtime.wandb_group or os.environ.get("WANDB_RUN_GROUP") or scale,
        "tags": names(runtime.wandb_tags) or None,
    }


class Mirror:
    """One W&B run, or nothing at all.

    The first failure of any kind is reported as a warning and switches the mirror off. An offline run starts lazily
    with its first content, since importing and starting W&B takes longer than the first rounds of many runs.

    Args:
        mode: ``off``, ``offline`` (files under ``folder/wandb``, for ``wandb sync``) or ``online``.
        folder: folder for wandb's files.
        init: further arguments of ``wandb.init``.
    """

    def __init__(self, mode: Mode, folder: Path, **init: Any) -> None:
        self._logger: Any = None  # Lightning's WandbLogger
        self._later: Callable[[], None] | None = None
        if mode == "online":
            self._try(lambda: self._start(mode, folder, init))
        elif mode == "offline":
            self._later = partial(self._start, mode, folder, init)

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.close(exit_code=0 if error is None else 1)

    def row(self, row: Mapping[str, Any], classes: Sequence[str] = ()) -> None:
        """Mirror an evaluated round; the round is the step in W&B. ``classes`` are the names of the data's classes."""
        values = {k: v for k, v in row.items() if isinstance(v, int | float) and k != "round"}
        values |= {f"timing/{k}": v for k, v in row.get("timing", {}).items()}
        accuracies = zip(classes, row.get(BY_CLASS, ()), strict=False)
        values |= {f"{BY_CLASS}/{name}": v for name, v in accuracies if v is not None}
        self._do(lambda logger: logger.experiment.log(values, step=row["round"], commit=True))

    def record(self, record: Mapping[str, Any], classes: Sequence[str]) -> None:
        """Mirror a complete run's readings as its summary (``best/acc``), and its confusion matrix of ``classes``."""
        readings = {
            f"{reading}/{name}": value
            for reading in (*READINGS, AVERAGED)
            for name, value in (record.get(reading) or {}).items()
            if isinstance(value, int | float)
        }
        sums = {name: record[name] for name in ("bytes_up", "bytes_down") if name in record}
        self._do(lambda logger: logger.experiment.summary.update({**readings, **sums}))
        if confusion := record.get("confusion"):
            self._do(lambda logger: logger.experiment.log(_confusion(confusion, classes)))

    def tables(self, frames: Mapping[str, Any]) -> None:
        """Mirror data frames as ``wandb.Table``, by name."""

        def send(logger: Any) -> None:
            for name, frame in frames.items():
                logger.log_table(name, dataframe=frame)

        if frames := {name: frame for name, frame in frames.items() if len(frame)}:
            self._do(send)

    def figures(self, figures: Mapping[str, Any]) -> None:
        """Mirror matplotlib figures as images, by name."""

        def send(logger: Any) -> None:
            import wandb

            logger.experiment.log({name: wandb.Image(figure) for name, figure in figures.items()})

        if figures:
            self._do(send)

    def close(self, exit_code: int = 0) -> None:
        """Finish the W&B run; a nonzero ``exit_code`` marks it as failed."""
        self._later = None
        self._do(lambda logger: logger.experiment.finish(exit_code=exit_code))
        self._logger = None

    def _start(self, mode: Mode, folder: Path, init: Mapping[str, Any]) -> None:
        import wandb
        from lightning.pytorch.loggers import WandbLogger

        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, console="off")
        more: dict[str, Any] = {**init, "mode": mode, "resume": "allow"}  # offline, ``wandb sync`` obeys it
        self._logger = WandbLogger(experiment=wandb.init(dir=str(folder), settings=settings, **more))

    def _do(self, action: Callable[[Any], object]) -> None:
        if self._later is not None:
            start, self._later = self._later, None
            self._try(start)
        if self._logger is not None:
            self._try(lambda: action(self._logger))

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._logger = None
            warnings.warn(f"the W&B mirror is off, the run continues: {error}", stacklevel=4)


def _confusion(lines: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """Convert a record's confusion matrix to W&B's chart of counts; ``classes`` are their names."""
    import wandb

    matrix = np.array([line.split() for line in lines], dtype=int)
    cells = [[classes[t], classes[p], int(count)] for (t, p), count in np.ndenumerate(matrix)]
    names = ["Actual", "Predicted", "nPredictions"]
    chart = wandb.plot_table(
        "wandb/confusion_matrix/v1",
        wandb.Table(columns=[*names], data=cells),
        {name: name for name in names},
        {"title": "Confusion matrix of the last model"},
    )
    return {"confusion": chart}


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        return host in netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, ValueError, netrc.NetrcParseError):  # no file, or an invalid address or file
        return False

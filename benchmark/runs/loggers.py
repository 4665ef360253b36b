"""Lightning loggers beside a run's own files, and the mirror in Weights & Biases; neither can break a run."""

import netrc
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from lightning.fabric.loggers.logger import Logger
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback

from benchmark.config import Run
from benchmark.runs.records import AVERAGED, BY_CLASS, READINGS, Record
from datamodules.common.errors import ConfigError, one_line, unknown
from datamodules.common.plugins import plugin

PROJECT = "fssl-bench"
Mode = Literal["off", "offline", "online"]


def names(given: str | None) -> list[str]:
    """Split names separated by commas."""
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def lightning_loggers(given: str | None, folder: Path) -> list[Logger]:
    """Create the loggers named by ``--logger`` for ``Fabric``, except ``wandb`` (see ``Mirror``).

    Args:
        given: ``tensorboard`` and ``wandb``, separated by commas.
        folder: folder of the run; the logger writes to a subfolder of its name.

    Raises:
        ConfigError: a name is unknown, or the logger's package is missing.
    """
    loggers: list[Logger] = []
    for name in names(given):
        if name == "tensorboard":
            try:
                loggers.append(TensorBoardLogger(root_dir=folder, name=name, version=""))
            except ModuleNotFoundError as error:
                raise ConfigError(f"--logger {name}: {one_line(error)}") from None
        elif name != "wandb":
            raise unknown("logger", name, ["tensorboard", "wandb"])
    return loggers


def callbacks(given: str | None) -> list[Callback]:
    """Create the Lightning callbacks given to ``--callbacks`` as dotted paths.

    Raises:
        ConfigError: one cannot be imported, is no Lightning callback, is one of Lightning's own that needs a
            ``Trainer``, or cannot be created without arguments.
    """
    instances = []
    for path in names(given):
        cls = plugin(path, f"--callbacks {path}")
        if not (isinstance(cls, type) and issubclass(cls, Callback)):
            raise ConfigError(f"--callbacks {path}: this is not a subclass of lightning.pytorch.Callback")
        for base in cls.__mro__:  # of Lightning's own callbacks, a visit can serve these two
            if base.__module__.startswith("lightning.pytorch.callbacks.") and base not in (Callback, LambdaCallback):
                raise ConfigError(
                    f"--callbacks {path}: {base.__name__} needs a whole Trainer, and a client's visit has none; "
                    "docs/usage/python.md says which callbacks work, and what does the work of the others"
                )
        try:
            instances.append(cls())
        except Exception as error:
            raise ConfigError(f"--callbacks {path}: {error}; it must work without arguments") from None
    return instances


def choose_mode(wanted: str, scale: str, asked: bool = False) -> Mode:
    """Resolve ``off``, ``offline``, ``online`` or ``auto`` to a mode.

    ``auto`` follows ``WANDB_MODE`` if it is set. Otherwise scale ``quick`` is not mirrored (starting W&B takes longer
    than such a run), and other scales are online if W&B has a key and off without one. If W&B was explicitly ``asked``
    for, it is online with a key and offline without, at every scale.
    """
    setting = os.environ.get("WANDB_MODE", "").lower() if wanted == "auto" else wanted
    if not setting:
        if (asked or scale != "quick") and _has_key():
            return "online"
        return "offline" if asked else "off"
    modes: dict[str, Mode] = {"off": "off", "disabled": "off", "online": "online"}
    return modes.get(setting, "offline")


def mirror_run(run: Run, folder: Path, record: Record) -> "Mirror":
    """Create the mirror of a run. With ``--logger wandb`` scale quick has one, too.

    A run that resumes goes on in the same W&B run; one whose folder was deleted, or that is in another folder, gets a
    new one. Its configuration in W&B also has the ``row`` of a table that it is for, and what made it.

    Args:
        run: the run.
        folder: its folder.
        record: what its record says at its beginning.
    """
    config = run.config
    mode = choose_mode(config.runtime.wandb, config.scale, asked="wandb" in names(config.runtime.logger))
    made_from = {name: record[name] for name in ("partition_hash", "code_version")}
    start = re.sub(r"\D", "", record["timing"]["started"])
    of_run = {**record["config"], "row": run.name, **made_from}
    return Mirror(mode, folder, config.scale, f"{run.name} seed {config.seed}", id=f"{run.id}-{start}", config=of_run)


def mirror_tables(mode: Mode, folder: Path, scale: str, name: str, frames: Mapping[str, Any]) -> None:
    """Send tables (data frames by number) as ``wandb.Table``.

    Args:
        mode: of the mirror.
        folder: folder for wandb's files.
        scale: of the suite.
        name: of the tables' files.
        frames: the tables; empty ones are left out.
    """
    with Mirror(mode, folder, scale, f"tables {name}", id=f"tables-{name}") as mirror:
        for number, frame in frames.items():
            if len(frame):
                mirror.table(f"{name}/table {number}", dataframe=frame)


class Mirror:
    """A run in Weights & Biases, which starts with its first content; nothing in mode ``off``.

    W&B's environment variables name project, entity, group, run and tags; without them the project is ``fssl-bench``,
    and the group the scale. A run of W&B that the program has open is left alone. The first failure of any kind is
    reported as a warning and switches the mirror off.

    Args:
        mode: ``off``, ``offline`` (files under ``folder/wandb``, for ``wandb sync``) or ``online``.
        folder: folder for wandb's files.
        scale: the group.
        name: of the run.
        init: further arguments of ``wandb.init``.
    """

    def __init__(self, mode: Mode, folder: Path, scale: str, name: str, **init: Any) -> None:
        self._on = mode != "off"
        self._run: Any = None
        self._table: Any = None
        self._init = {
            "mode": mode,
            "dir": folder,
            "project": os.environ.get("WANDB_PROJECT") or PROJECT,
            "group": os.environ.get("WANDB_RUN_GROUP") or scale,
            "name": os.environ.get("WANDB_NAME") or name,
            "resume": "allow",
            "reinit": "create_new",
            "settings": {"silent": True, "console": "off"},
            **init,
        }

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._run:
            self._send(lambda run: run.finish(exit_code=0 if error is None else 1))

    def row(self, row: Mapping[str, Any], classes: Sequence[str] = ()) -> None:
        """Mirror an evaluated round, against which W&B draws; ``classes`` are the names of the data's classes."""
        values = {k: v for k, v in row.items() if isinstance(v, int | float)}
        values |= {f"timing/{k}": v for k, v in row.get("timing", {}).items()}
        accuracies = zip(classes, row.get(BY_CLASS, ()), strict=False)
        values |= {f"{BY_CLASS}/{name}": v for name, v in accuracies if v is not None}
        self._send(lambda run: run.log(values))

    def record(self, record: Mapping[str, Any], classes: Sequence[str]) -> None:
        """Mirror a complete run's readings as its summary (``best/acc``), and its confusion matrix of ``classes``."""
        summary: dict[str, Any] = {}
        for reading in (*READINGS, AVERAGED):
            for name, value in (record.get(reading) or {}).items():
                if isinstance(value, int | float):
                    summary[f"{reading}/{name}"] = value
        summary |= {name: record[name] for name in ("bytes_up", "bytes_down")}
        self._send(lambda run: run.summary.update(summary))
        if confusion := record.get("confusion"):
            counts = [[true, *map(int, line.split())] for true, line in zip(classes, confusion, strict=True)]
            self.table("confusion", columns=["true class", *classes], data=counts)

    def table(self, name: str, **content: Any) -> None:
        """Mirror a table: a ``dataframe``, or ``columns`` and ``data``."""
        self._send(lambda run: run.log({name: self._table(**content)}))

    def _send(self, action: Callable[[Any], object]) -> None:
        """Do something with W&B's run, which is started if it has not been; nothing in mode ``off``."""
        if not self._on:
            return
        try:
            if self._run is None:
                import wandb

                self._init["dir"].mkdir(parents=True, exist_ok=True)
                self._table = wandb.Table
                self._run = wandb.init(**self._init)
                self._run.define_metric("*", step_metric="round")
            action(self._run)
        except Exception as error:
            self._on = False
            warnings.warn(f"the W&B mirror is off, the run continues: {error}", stacklevel=3)


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        return host in netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, ValueError, netrc.NetrcParseError):  # no file, or an invalid address or file
        return False

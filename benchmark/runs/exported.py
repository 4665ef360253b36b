"""The trained model of a run in one file: weights, record (with the configuration) and rows of metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.config import Run
from benchmark.runs.records import read_record, read_rows, validate
from datamodules.common.errors import RunError, one_line
from datamodules.common.files import replacing

FORMAT = "fssl-bench model 1"
WEIGHTS = "weights.pt"
SIZES = ("num_clients", "num_images")
LOOK = ("num_classes", "class_names", "image_size", "feature_dim", "mean", "std")
"""What the method and the views depend on beside options: sizes, and how images look; known once data are set up."""


@dataclass(frozen=True)
class Exported:
    """The content of an exported file.

    Args:
        record: the run's.
        rows: of its evaluated rounds.
        weights: the global model of its last round, by the names of the method's tensors.
        input: ``SIZES`` and ``LOOK``; empty in files of earlier versions.
    """

    record: Mapping[str, Any]
    rows: list[dict[str, Any]]
    weights: Mapping[str, Tensor]
    input: Mapping[str, Any]


def export(run: Run, file: Path) -> None:
    """Write the model of a complete run to a file that ``torch.load(weights_only=True)`` reads.

    Args:
        run: the run.
        file: where to write it; an existing file is replaced.

    Raises:
        RunError: the run has no complete record or no weights.
        DataError: the data are missing.
        OSError: the file cannot be written.
    """
    path = run.folder
    record = read_record(path)
    if record["status"] != "complete":
        raise RunError(f"{path}: the run is not complete; only complete runs can be exported")
    content = {"format": FORMAT, "record": record, "rows": read_rows(path), "weights": read_weights(path / WEIGHTS)}
    data = run.make_data()
    data.setup()
    content["input"] = {name: getattr(data, name) for name in (*SIZES, *LOOK)}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as stream:
        torch.save(content, stream)


def read_exported(file: Path) -> Exported:
    """Read what ``export`` has written.

    Raises:
        RunError: the file is something else, or damaged.
    """
    content = _loaded(file, "give the folder of a run, or a file that `fit --export` wrote")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{file}: this is not an exported model ({FORMAT}); `fit --export` writes one")
    validate(content["record"], f"{file}, record")
    return Exported(content["record"], content["rows"], content["weights"], content.get("input", {}))


def read_weights(file: Path) -> dict[str, Tensor]:
    """The weights in a run's folder.

    Raises:
        RunError: there are none, or the file is damaged.
    """
    if not file.exists():
        raise RunError(f"{file}: there are no weights; a run writes them when it ends; shared records have none")
    return dict(_loaded(file, "delete the folder and run it again"))


def _loaded(file: Path, remedy: str) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # for a damaged file PyTorch raises errors of many types
        raise RunError(f"{file}: the weights cannot be read ({one_line(error)}); {remedy}") from None

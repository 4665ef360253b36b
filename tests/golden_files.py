"""Reference numbers from the authors' released functions, as tensors."""

import json
from pathlib import Path
from typing import Any

import torch


def load(name: str) -> Any:
    """Load ``tests/golden/<name>.json`` with all tensors restored."""
    return tensors(json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text()))


def tensors(value: Any) -> Any:
    """Replace ``{"__tensor__": dtype, "shape": [...], "data": [...]}`` by tensors, at any depth."""
    if isinstance(value, dict) and "__tensor__" in value:
        return torch.tensor(value["data"], dtype=getattr(torch, value["__tensor__"])).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: tensors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [tensors(item) for item in value]
    return value

"""Reference numbers from the authors' released functions, as tensors, and how ours are compared with them."""

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


def close(ours: torch.Tensor, golden: torch.Tensor, source: dict[str, Any]) -> None:
    """Within the tolerance that the reference file states."""
    torch.testing.assert_close(ours.to(golden.dtype), golden, **source["tolerance"])


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers in double precision, for what no reference file has."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

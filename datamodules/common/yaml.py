"""YAML as version 1.2 defines it, read strictly and written so that it is read alike."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from datamodules.common.errors import ConfigError


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Dump plain data as YAML, in the given key order."""
    return str(yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def load_yaml(text: str, where: str) -> dict[str, Any]:
    """Load a YAML mapping according to YAML 1.2 (``5e-4`` is a number, ``010`` is ten, ``off`` is a word).

    Raises:
        ConfigError: not valid YAML, or not a mapping; the message starts with ``where``.
    """
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a mapping of names to values")
    return values


def read_yaml(path: Path, before: str = "") -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Args:
        path: the file.
        before: what stands before its path where it cannot be read, such as ``suite``.

    Raises:
        ConfigError: it cannot be read, or see ``load_yaml``.
    """
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{before} {path}: {getattr(error, 'strerror', None) or error}".strip()) from None
    return load_yaml(text, str(path))


def read_value(text: str) -> Any:
    """Parse one value as in a YAML file.

    Raises:
        ConfigError: see ``load_yaml``.
    """
    return load_yaml(f"value: {text}", f"value '{text}'")["value"]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc,unused-ignore]
    """Loads scalars as in YAML 1.2 (whole numbers may have underscores, too), and refuses duplicate keys.

    Uses PyYAML's C loader if available, which is ten times as fast.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping after checking its keys."""
        seen: set[Any] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            if key.value in seen:
                problem = f"the key '{key.value}' occurs twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))

    def whole_number(self, node: Any) -> int:
        """Construct a whole number: decimal, even with zeros in front, ``0o`` octal or ``0x`` hexadecimal."""
        text = self.construct_scalar(node)
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag.rpartition(":")[2] in ("merge", "null")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole_number)
_FLOAT = r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
for _kind, _form, _starts in (
    ("bool", "^(?:true|false|True|False|TRUE|FALSE)$", "tfTF"),
    ("int", r"^[-+]?\d+(?:_\d+)*$|^0o[0-7]+$|^0x[\da-fA-F]+$", "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_form), list(_starts))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc,unused-ignore]
    """Quotes every string that YAML 1.1 or 1.2 would not read as a string."""


for _first, _rules in _Loader.yaml_implicit_resolvers.items():
    for _tag, _rule in _rules:
        _Dumper.add_implicit_resolver(_tag, _rule, [_first])

"""Measure the speed of this machine: ``python -m benchmark.perf growth:fedavg``.

With a GPU, ``python -m benchmark.perf gpu`` checks the engines on it, and ``gpu:METHOD`` also times one
(``make perf-gpu``).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch

from benchmark.perf import gpu, rounds
from benchmark.perf.measure import Section
from benchmark.registry import KINDS, find_class
from datamodules.common.errors import ConfigError
from datamodules.common.files import write_atomic


def main(words: Sequence[str] | None = None) -> int:
    """Print the chosen tables, and optionally write them to a file, line by line.

    Returns:
        Exit code; 2 if a GPU is requested but not available.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="+", help="of growth, gpu; methods follow after colons")
    parser.add_argument("--write", type=Path, help="Markdown file for the tables; it is replaced")
    parser.add_argument(
        "--parts", nargs="+", choices=gpu.PARTS, help="gpu: these; default: all with methods, else agreement"
    )
    parser.add_argument("--trial", action="store_true", help="gpu: the same code on the CPU with tiny sizes")
    given = parser.parse_args(words)
    tables: list[Iterator[Section]] = []
    for name, *methods in (word.split(":") for word in given.sections):
        try:
            for method in methods:
                find_class(method, KINDS["method"])
        except ConfigError as error:
            parser.error(str(error))
        if name == "gpu":
            if not given.trial and not torch.cuda.is_available():
                print("gpu: this machine has no GPU that torch can use; --trial runs the same code on the CPU")
                return 2
            parts = given.parts or (gpu.PARTS if methods else ["agreement"])
            tables += [gpu.PARTS[part](methods, given.trial) for part in parts]
        elif name != "growth":
            parser.error(f"{name}: there are the sections growth and gpu")
        elif not methods:
            parser.error("growth: name a method, growth:METHOD")
        else:
            tables += map(rounds.growth, methods)
    done: dict[str, Section] = {}
    for section in chain.from_iterable(tables):
        done[section.title] = section
        if given.write is not None:
            write_atomic(given.write, "# Speed\n\n" + "\n".join(one.text() for one in done.values()))
        print(f"{section.title}: {section.rows[-1]}", file=sys.stderr, flush=True)
    print("\n".join(section.text() for section in done.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

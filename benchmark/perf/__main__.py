"""Measure the speed of this machine: ``python -m benchmark.perf epochs:fed_consist rounds:fedavg --write FILE``."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmark.launch.allocator import keep_memory
from benchmark.perf import agreement, augmentation, engines, epochs, memory, profiles, rounds, sharpness
from benchmark.perf.measure import Section, merged

SECTIONS: dict[str, tuple[Callable[..., list[Section]], int]] = {
    "epochs": (epochs.section, 1),
    "sharpness": (sharpness.section, 1),
    "layouts": (rounds.layouts, 1),
    "scaling": (rounds.scaling, 1),
    "engines": (engines.section, 1),
    "agreement": (agreement.section, 0),
    "augmentation": (augmentation.section, 0),
    "memory": (memory.section, 0),
    "profiles": (profiles.section, 2),
}


def main() -> int:
    """Print the chosen tables, and write them to a file if asked; nothing here is a test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="+", help=f"of {', '.join(SECTIONS)}; methods follow after colons")
    parser.add_argument("--write", type=Path, help="Markdown file for the tables; sections of other titles stay in it")
    arguments = parser.parse_args()
    keep_memory()
    done = []
    for word in arguments.sections:
        name, *methods = word.split(":")
        if name not in SECTIONS or len(methods) != SECTIONS[name][1]:
            parser.error(f"{word}: give one of {', '.join(f'{k} ({n} methods)' for k, (_, n) in SECTIONS.items())}")
        for section in SECTIONS[name][0](*methods):
            print(section.text(), flush=True)
            done.append(section)
    if arguments.write:
        before = arguments.write.read_text(encoding="utf-8") if arguments.write.exists() else ""
        arguments.write.write_text(merged(before, done), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

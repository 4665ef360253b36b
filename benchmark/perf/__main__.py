"""Measure the speed of this machine: ``python -m benchmark.perf epochs:fed_consist layouts:fedavg --write FILE``.

With a GPU, ``python -m benchmark.perf gpu:fedavg --goal ... --write FILE`` checks it, times it and profiles it
(``make perf-gpu``).
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from benchmark.files import write_atomic
from benchmark.launch.process import keep_memory
from benchmark.perf import goals, gpu
from benchmark.perf.measure import Section, merged
from benchmark.perf.worker import Worker
from benchmark.registry import KINDS, find_class
from datamodules.common.errors import ConfigError

SECTIONS: dict[str, tuple[str, int]] = {
    "epochs": ("epochs.section", 1),
    "sharpness": ("sharpness.section", 1),
    "layouts": ("rounds.layouts", 1),
    "growth": ("growth.section", 1),
    "partitions": ("rounds.partitions", 0),
    "replays": ("replays.section", 0),
    "augmentation": ("augmentation.section", 0),
    "memory": ("memory.section", 0),
    "start": ("start.section", 1),
}
"""Sections by name: measuring function, of a module that is imported only when needed, and number of methods.

A rented GPU machine may have few packages besides torch.
"""
GPU, NO_GPU = "gpu", 2


def main(words: Sequence[str] | None = None) -> int:
    """Print the chosen tables, and optionally write them to a file.

    Returns:
        Exit code; 2 if a GPU is requested but not available.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    known = f"{', '.join(SECTIONS)}, {GPU}"
    parser.add_argument("sections", nargs="+", help=f"of {known}; methods follow after colons")
    parser.add_argument("--write", type=Path, help="Markdown file for the tables; sections of other titles stay in it")
    parser.add_argument(
        "--goal",
        action="append",
        nargs="+",
        default=[],
        metavar="WORD",
        help=f"{GPU}: PAPER ROW ROUNDS SECONDS [OPTION=VALUE ...]: a row of a suite, and how long it may take",
    )
    parser.add_argument("--parts", nargs="+", choices=gpu.PARTS, default=list(gpu.PARTS), help=f"{GPU}: only these")
    parser.add_argument("--minutes", type=float, default=9.0, help=f"{GPU}: for each part")
    parser.add_argument("--trial", action="store_true", help=f"{GPU}: the same code on the CPU with tiny sizes")
    arguments = parser.parse_args(words)
    if arguments.trial and arguments.write:
        parser.error("--trial measures nothing that is worth writing; leave --write out")
    if arguments.write and not arguments.write.absolute().parent.is_dir():
        parser.error(f"--write {arguments.write}: there is no such folder; create it first")
    for word in arguments.sections:
        name, *methods = word.split(":")
        if name != GPU and (name not in SECTIONS or len(methods) != SECTIONS[name][1]):
            counts = ", ".join(f"{k} ({n} methods)" for k, (_, n) in SECTIONS.items())
            parser.error(f"{word}: give one of {counts}, {GPU} (any number of them)")
    try:
        for method in (method for word in arguments.sections for method in word.split(":")[1:]):
            find_class(method, KINDS["method"])
        chosen = [goals.parsed(given) for given in arguments.goal]
    except ConfigError as error:
        parser.error(str(error))
    keep_memory()
    for word in arguments.sections:
        name, *methods = word.split(":")
        if name == GPU:
            plan = gpu.GPUPlan(methods, chosen, seconds=60 * arguments.minutes)
            if not arguments.trial and not torch.cuda.is_available():
                print(f"{word}: this machine has no GPU that torch can use; --trial runs the same code on the CPU")
                return NO_GPU
            with_gpu(gpu.trial(plan) if arguments.trial else plan, arguments.parts, arguments.write)
            continue
        module, _, function = SECTIONS[name][0].partition(".")
        for section in getattr(import_module(f"benchmark.perf.{module}"), function)(*methods):
            publish(section, arguments.write)
            print(section.text(), flush=True)
    return 0


def with_gpu(plan: gpu.GPUPlan, parts: Sequence[str], file: Path | None) -> None:
    """Measure parts of the plan; every line is written as soon as it is measured."""
    worker = Worker()

    def grown(section: Section) -> None:
        publish(section, file)
        print(f"{section.title}: {section.rows[-1]}", file=sys.stderr, flush=True)

    try:
        for section in gpu.measure(plan, parts, worker, grown):
            print(section.text(), flush=True)
    finally:
        worker.close()


def publish(section: Section, file: Path | None) -> None:
    """Write a section to the file, if any."""
    if file is not None:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        write_atomic(file, merged(before, [section]))


if __name__ == "__main__":
    sys.exit(main())

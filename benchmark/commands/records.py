"""``records``: take records along, and get those of a release."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import listed, refuse
from datamodules.common.errors import ConfigError

ABOUT = "Export complete runs to one file, or import those of a release."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("what", type=Literal["export", "import"], help="what to do")
    parser.add_argument("file", type=str, help="the archive, such as board-0.3.0.tar.gz; to import, also its URL")
    parser.add_argument("--results_dir", type=str, default="results", help="folder that holds runs/")
    parser.add_argument(
        "--scales", type=str | None, help="export only runs of these scales, e.g. board,paper; default: all"
    )
    parser.add_argument("--sha256", type=str | None, help="import only an archive with this digest")


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Run the command; returns its exit code."""
    refuse(dotted, "records")
    from benchmark.runs.archive import pack, unpack

    exports = options.what == "export"
    for name, fits in (("scales", exports), ("sha256", not exports)):
        if options[name] is not None and not fits:
            raise ConfigError(f"records {options.what} takes no --{name}")
    results = Path(options.results_dir)
    if exports:
        count, digest = pack(results, Path(options.file), listed(options.scales, "--scales"))
        print(f"wrote {options.file}: {count} runs, {Path(options.file).stat().st_size:,} bytes, SHA-256 {digest}")
    else:
        new, known = unpack(options.file, results, options.sha256)
        print(f"imported {new} runs into {results / 'runs'}; {known} were there already")
    return 0

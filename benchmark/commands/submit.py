"""``submit``: pack a row of your own for others, check a submission, or rerun one of its seeds."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from benchmark.commands.common import refuse, runtime_of
from benchmark.config import Runtime
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError

ABOUT = (
    "Hand in a row of a leaderboard. With --paper: pack the results of `enter` into a folder, run the contract "
    "tests, and check the folder. With --check: check point by point whether a folder follows the rules. With "
    "--verify: rerun one of its seeds, and mark the row as verified if the results agree."
)
WAYS = ("paper", "check", "verify")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    text = str | None
    parser.add_argument("--paper", type=text, help="the suite that `enter` wrote, e.g. text-my_method-all.yaml")
    parser.add_argument("--scale", type=str, default="board", help="with --paper: scale of the leaderboard")
    parser.add_argument(
        "--out", type=text, help="with --paper: the folder to create (default: submissions/, named after the suite)"
    )
    parser.add_argument(
        "--check", type=text, metavar="FOLDER", help="check this submission; exits with 1 if a point fails"
    )
    parser.add_argument(
        "--contract",
        action="store_true",
        help="with --check: rerun the contract tests instead of trusting the results in the folder",
    )
    parser.add_argument("--verify", type=text, metavar="FOLDER", help="rerun a seed of this submission")
    parser.add_argument("--seed", type=int | None, help="with --verify: which seed to rerun")
    parser.add_class_arguments(Runtime, skip={"devices", "num_nodes"})


def run(options: Namespace, dotted: Mapping[str, Any]) -> int:
    """Run the command; returns its exit code."""
    refuse(dotted, "submit")
    asked = [way for way in WAYS if options[way] is not None]
    if len(asked) != 1:
        raise ConfigError(f"submit needs one of {', '.join(f'--{way}' for way in WAYS)}")
    if (options.seed is None) == (options.verify is not None):
        raise ConfigError("--verify and --seed go together, as in --verify FOLDER --seed 3")
    runtime = runtime_of(options)
    if options.verify is not None:
        return _verify(Path(options.verify), options.seed, runtime)
    results = Path(runtime.results_dir)
    if options.check is not None:
        return _check(Path(options.check), results, options.contract)
    return _check(_packed(options, results), results, contract=False)


def _packed(options: Namespace, results: Path) -> Path:
    from benchmark.submission.folder import pack

    suite = load(options.paper)
    out = Path(options.out or Path("submissions") / Path(options.paper).stem)
    pack(suite, options.scale, results, out, _tell)
    return out


def _check(place: Path, results: Path, contract: bool) -> int:
    from benchmark.submission.checking import check

    points = check(place, results, _tell if contract else None)
    for point in points:
        print(f"FAILS  {point.name}" if point.problems else f"holds  {point.name}: {point.found}")
        for problem in point.problems:
            print(f"       - {problem}")
    bad = sum(bool(point.problems) for point in points)
    print(f"{place}: {f'{bad} of {len(points)} points fail' if bad else f'all {len(points)} points hold'}")
    return 1 if bad else 0


def _verify(place: Path, seed: int, runtime: Runtime) -> int:
    from benchmark.submission.verification import verify

    found = verify(place, seed, runtime)
    for line in found.lines:
        print(line)
    print(f"{place}, seed {seed}: {'verified' if found.counts else 'not verified'}: {found.reason}")
    return 0 if found.counts else 1


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""Run one configuration, make a paper's tables, see what is missing, draw curves, look at a partition."""

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, Namespace

from benchmark.commands import admit, describe, enter, fit, names, plot, records, status, table, tune, verify
from benchmark.commands.common import MAPPINGS
from benchmark.launch.launchers import check_left_over
from benchmark.launch.signals import STOPPED, stoppable
from benchmark.registry import KINDS, known_names, type_in_words
from benchmark.runs.code_identity import code_version, package_version
from benchmark.runs.console import printable, tell_downloads
from datamodules.common.errors import BenchError, ConfigError, Stopped, one_line
from datamodules.common.yaml import read_value

NAMED = (fit, table, admit, tune, enter, status, plot, describe, verify, records)
MODULES: dict[str, Any] = {module.__name__.rpartition(".")[2]: module for module in NAMED} | {"list": names}
"""The commands by name: that of their module, except for ``list``."""
UNREAD = 141  # a shell's exit code for a program that SIGPIPE has ended
WITH_DOTTED = ("fit", "enter", "describe")
"""Commands that take options with a dot, such as ``--method.lr``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0: fine; 1: a run of ``table`` or one of several of ``fit`` failed, a run differs, or ``records --check`` found a
    problem; 2: bad input, or else a run failed; 75: stopped by ``SIGTERM``, ``SIGUSR1`` or ``SIGHUP``, and the same
    command continues; 130: interrupted; 141: the output is no longer read.
    """
    os.environ["MPLBACKEND"] = "agg"  # figures go to files; matplotlib fails at its import where this names no backend
    argv = sys.argv[1:] if argv is None else argv
    tell_downloads()
    try:
        with stoppable():
            try:
                return _run(argv)
            finally:
                sys.stdout.flush()  # fail here, not when Python exits
    except BenchError as error:
        print(f"error: {printable(one_line(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would try once more when it exits
        return UNREAD
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; is the folder there, writable and not full?", file=sys.stderr)
        return 2
    except (Stopped, KeyboardInterrupt) as ended:
        how, code = (str(ended), STOPPED) if isinstance(ended, Stopped) else ("interrupted", 130)
        without = " without --overwrite" if "--overwrite" in argv else ""  # which would delete what it has done
        print(f"{how}; the same command{without} resumes", file=sys.stderr)
        return code


def _run(argv: Sequence[str]) -> int:
    arguments, dotted = split_dotted(argv)
    if arguments[:1] == ["--version"]:
        print(f"fssl-bench {package_version()} ({code_version()})")
        return 0
    check_left_over()
    parsed = _parsed(arguments)
    command, options = parsed.subcommand, parsed[parsed.subcommand]
    if command in WITH_DOTTED:
        return MODULES[command].run(options, dotted) or 0
    if dotted:
        raise ConfigError(f"{command} takes no --{next(iter(dotted))}: what a table runs is in its suite file")
    return MODULES[command].run(options) or 0


def split_dotted(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take ``--method.x value`` and the like out of a command line; write the other options with ``_``.

    Values of method and data options stay strings (their types are known later), others are read as YAML.
    """
    rest: list[str] = []
    dotted: dict[str, Any] = {}
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            rest.append(argument)
            continue
        name = name[2:].replace("-", "_")
        head, dot, _ = name.partition(".")
        if not dot or head not in (*KINDS, *MAPPINGS):
            if name == "slurm" and not equals:  # options of sbatch, spelled as they are
                equals, value = "=", next(arguments, "")
            rest.append(f"--{name}{equals}{value}")
            continue
        if not equals:
            value = next(arguments, "")
        if not value or (not equals and value.startswith("--")):
            names = f": {', '.join(known_names(KINDS[head]))}" if name == f"{head}.help" and head in KINDS else ""
            raise ConfigError(f"--{name} needs a value{names}")
        dotted[name] = value if head in KINDS else read_value(value)
    return rest, dotted


def _parsed(arguments: list[str]) -> Namespace:
    script = Path(sys.argv[0]).name
    top, commands = _parsers("fssl-bench" if script == "fssl-bench" else "python -m benchmark")
    command = commands.get(arguments[0], top) if arguments else top
    try:
        return top.parse_args(arguments, defaults=arguments[:1] != ["fit"])
    except ArgumentError as error:
        message = one_line(error).replace(f" {arguments[0]}.", " --") if arguments else one_line(error)
        if wrong := re.search(r'Parser key "(?:\w+\.)?(\w+)".* value: (.*?)$', message):  # a value of the wrong type
            option = next(action for action in command._actions if action.dest == wrong[1])
            expected = type_in_words(getattr(option, "_typehint", None) or option.type)
            message = f"{'--' if option.option_strings else ''}{wrong[1]} {wrong[2]}: expected {expected}"
        raise ConfigError(f"{message} (`--help` lists the options; those of classes are --method.NAME ...)") from None


@cache
def _parsers(prog: str) -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    """The parser of all commands, and that of each."""
    top = ArgumentParser(prog=prog, description=__doc__, exit_on_error=False)
    commands = {name: ArgumentParser(description=module.ABOUT, exit_on_error=False) for name, module in MODULES.items()}
    top.add_argument("--version", action="store_true", help="print the version of the package and of the code")
    subcommands = top.add_subcommands()
    for name, command in commands.items():
        MODULES[name].add_arguments(command)
        subcommands.add_subcommand(name, command, help=MODULES[name].ABOUT.partition(".")[0])
    return top, commands

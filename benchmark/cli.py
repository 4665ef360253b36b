"""Run one configuration, make a paper's tables, see what is missing, draw curves, look at a partition."""

import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter, Namespace

from benchmark.argument_help import described
from benchmark.arguments import options_of, type_in_words, type_of
from benchmark.commands import (
    admit,
    describe,
    enter,
    fit,
    names,
    plot,
    records,
    status,
    table,
    tune,
    verify,
)
from benchmark.commands.common import MAPPINGS, same_command
from benchmark.console import printable
from benchmark.files import read_value
from benchmark.launch.signals import STOPPED, stoppable
from benchmark.registry import KINDS, find_class, known_names, one_line
from benchmark.runs.code_identity import code_version, package_version
from datamodules.common.errors import BenchError, ConfigError, Stopped

MODULES: dict[str, Any] = {
    "fit": fit,
    "table": table,
    "admit": admit,
    "tune": tune,
    "enter": enter,
    "status": status,
    "plot": plot,
    "describe": describe,
    "verify": verify,
    "records": records,
    "list": names,
}
UNITS = {
    "client_memory": "GB",
    "checkpoint_every_s": "SECONDS",
    "eval_every": "ROUNDS",
    "last_k": "ROUNDS",
    "average_last": "ROUNDS",
    "slurm_bundle": "RUNS",
    "slurm_at_once": "TASKS",
    "config": "FILE",
    "export": "FILE",
    "plot": "FILE",
    "readme": "FILE",
    "out": "PATH",
    "data_dir": "FOLDER",
    "results_dir": "FOLDER",
}
"""What the help writes for the value of an option, where the option's name does not say it."""
LEAST_COLUMNS = 40
MOST_NESTED = 5000  # brackets and the like in one argument
UNREAD = 141  # a shell's exit code for a program that SIGPIPE has ended
COMMANDS: dict[str, Callable[[Namespace, dict[str, Any]], int]] = {name: module.run for name, module in MODULES.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0: fine; 1: one of several runs failed, or a run differs; 2: bad input, or the one run failed; 75: stopped by
    ``SIGTERM``, ``SIGUSR1`` or ``SIGHUP``, and the same command continues; 130: interrupted; 141: the output is no
    longer read.
    """
    os.environ["MPLBACKEND"] = "agg"  # figures go to files; matplotlib fails at its import where this names no backend
    try:
        return _stoppable(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:
        return _unread()


def _stoppable(argv: Sequence[str]) -> int:
    try:
        with stoppable():
            return _run(argv)
    except Stopped as stopped:
        print(f"{stopped}; {same_command('--overwrite' in argv)} resumes", file=sys.stderr)
        return STOPPED


def _unread() -> int:
    """Report on stderr, if that is still open, that the output is no longer read."""
    for stream, word in ((sys.stdout, ""), (sys.stderr, "nobody reads the output any more\n")):
        try:
            stream.write(word)
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python would try once more when it exits
    return UNREAD


def _run(argv: Sequence[str]) -> int:
    try:
        try:
            return _carried_out(argv)
        finally:
            sys.stdout.flush()  # fail here, not when Python exits
    except BenchError as error:
        print(f"error: {printable(one_line(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise  # unlike other OSErrors, not about a file
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; is the folder there, writable and not full?", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _carried_out(argv: Sequence[str]) -> int:
    for argument in argv:
        _check_nesting(argument)
    arguments, dotted = split_dotted(list(argv))
    if arguments[:1] == ["--version"]:
        print(f"fssl-bench {package_version()} ({code_version()})")
        return 0
    chosen = _parse(arguments)
    return COMMANDS[chosen.subcommand](chosen[chosen.subcommand], dotted)


def _check_nesting(argument: str) -> None:
    """Refuse a value that would crash the YAML parser, which reads options too."""
    if len(re.findall(r"[\[{]|[-?:]\s", argument)) > MOST_NESTED:
        raise ConfigError(f"{argument[:60]}...: this value is nested too deeply, or has too many parts")


def split_dotted(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take ``--method.x value`` and the like out of a command line; write the other options with ``_``.

    Values of method and data options stay strings (their types are known later), others are read as YAML.
    """
    rest: list[str] = []
    dotted: dict[str, Any] = {}
    arguments = iter(argv)
    for argument in arguments:
        name, given, value = argument.partition("=")
        if not name.startswith("--"):
            rest.append(argument)
            continue
        name = name[2:].replace("-", "_")
        if name == "slurm" and not given and (theirs := next(arguments, None)) is not None:
            rest.append(f"--slurm={theirs}")  # options of sbatch, spelled as they are
            continue
        head, dot, _ = name.partition(".")
        if not dot or head not in (*KINDS, *MAPPINGS):
            rest.append(f"--{name}{given}{value}")
            continue
        if not given:
            value = next(arguments, "")
        if not value or (not given and value.startswith("--")):
            names = f": {', '.join(known_names(KINDS[head]))}" if name == f"{head}.help" and head in KINDS else ""
            raise ConfigError(f"--{name} needs a value{names}")
        dotted[name] = value if head in KINDS else read_value(value)
    return rest, dotted


def _parse(arguments: list[str]) -> Namespace:
    script = Path(sys.argv[0]).name
    top, commands = _parser(script) if script == "fssl-bench" else _parser()
    try:
        chosen: Namespace = top.parse_args(arguments, defaults=arguments[:1] != ["fit"])
    except ArgumentError as error:
        command = commands.get(arguments[0], top) if arguments else top
        message = re.sub(rf"\b{re.escape(next(iter(arguments), ''))}\.(\w+)", r"--\1", _explained(error, command))
        _, _, words = message.partition("nrecognized arguments: ")
        for word in words.split():
            meant = _meant(word.partition("=")[0], arguments, command) if word.startswith("--") else ""
            message += f"; did you mean {meant}?" if meant else ""
        raise ConfigError(f"{message} (`--help` lists the options)") from None
    return chosen


def _explained(error: ArgumentError, command: ArgumentParser) -> str:
    """A message of jsonargparse in one line; for a value of the wrong type: option, value, and what is expected."""
    message = one_line(error)
    found = re.search(r'Parser key "(?:\w+\.)?(\w+)".* value: (.*?)$', message)
    expected = {option.dest: type_in_words(type_of(option)) for option in options_of(command)}
    if found is None or found[1] not in expected:
        return message
    given = "null" if found[2] == "None" else found[2]
    positional = any(not option.option_strings for option in options_of(command) if option.dest == found[1])
    return f"{'' if positional else '--'}{found[1]} {given}: expected {expected[found[1]]}"


def _meant(option: str, arguments: Sequence[str], command: ArgumentParser) -> str:
    """What an unknown option may stand for: one of the method or the data set, or the closest of the command."""
    name, own = option[2:], [o[2:] for a in options_of(command) for o in a.option_strings if o not in ("-h", "--help")]
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for slot, kind in KINDS.items():
        if slot not in own:
            continue
        try:
            cls = find_class(dict(pairwise(words)).get(f"--{slot}", kind.base), kind)
        except ConfigError:
            cls = find_class(kind.base, kind)
        if name in described(cls, slot):
            return f"--{slot}.{name}"
    return next((f"--{close}" for close in get_close_matches(name, own, n=1)), "")


class _Help(DefaultHelpFormatter):
    """Help without types, which the texts explain in words, and without empty defaults."""

    def _expand_help(self, action: Any) -> str:
        text = super()._expand_help(action).replace("``", "")
        if action.nargs == "*":
            return text.removesuffix(" (required)")  # jsonargparse says so of every positional argument
        at = max(text.rfind(start) for start in (" (required, type: ", " (type: ", " (default: "))
        if at < 0:
            return text
        about, facts = text[:at], text[at:].removesuffix(")")
        if facts.startswith(" (required"):
            return f"{about} (required)"
        default = facts.partition("default: ")[2]
        return about if default in ("", "null", "False") else f"{about} (default: {default})"

    def _get_default_metavar_for_optional(self, action: Any) -> str:
        """The unit of an option's value, ``N`` for any other whole number, or else the option's name."""
        number = "N" if "int" in type_in_words(type_of(action)).split(" or ") else ""
        return UNITS.get(action.dest) or number or super()._get_default_metavar_for_optional(action)

    def start_section(self, heading: str | None) -> None:
        """Begin a group, its heading wrapped like the texts below it."""
        super().start_section(heading and textwrap.fill(heading.replace("``", ""), max(self._width, LEAST_COLUMNS)))


class _Parser(ArgumentParser):
    """A parser that notices when nobody reads its help; argparse's own ignores that."""

    def print_help(self, file: Any = None) -> None:
        """Print the help, by default on stdout."""
        print(self.format_help(), end="", file=file, flush=True)


@cache
def _parser(prog: str = "python -m benchmark") -> tuple[_Parser, dict[str, _Parser]]:
    style: Any = {"formatter_class": _Help, "exit_on_error": False}
    top = _Parser(prog=prog, description=__doc__, **style)
    commands = {name: _Parser(description=module.ABOUT, **style) for name, module in MODULES.items()}
    top.add_argument("--version", action="store_true", help="print the version of the package and of the code")
    subcommands = top.add_subcommands()
    for name, command in commands.items():
        MODULES[name].add_arguments(command)
        subcommands.add_subcommand(name, command, help=MODULES[name].ABOUT.partition(".")[0])
    return top, commands

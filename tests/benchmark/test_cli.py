"""The command line: how it reads options, what it says of them, how it ends."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from benchmark import ROOT, cli
from benchmark.cli import MODULES, main, split_dotted
from benchmark.launch.signals import STOPPED
from benchmark.registry import KINDS, find_class, known_names, parameters
from datamodules.common.errors import Stopped
from toy_suite import HEAVY


@pytest.mark.parametrize("given", [["--slurm=--gpus-per-task=1 --nodes=2"], ["--slurm", "--gpus-per-task=1 --nodes=2"]])
def test_options_of_sbatch_stay_as_they_are_spelled(given):
    rest, _ = split_dotted(["table", *given, "--data-dir", "d"])
    assert rest == ["table", "--slurm=--gpus-per-task=1 --nodes=2", "--data_dir", "d"]


def test_a_reader_that_goes_away_is_no_missing_folder():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmark", "list", "models"]
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    program.stdout.close()
    assert (program.stderr.read(), program.wait()) == ("", cli.UNREAD)


LEFT_OVER = {"RANK": "abc", "SLURM_NTASKS": "abc", "TORCHELASTIC_RUN_ID": "left over"}


@pytest.mark.parametrize("name", LEFT_OVER)
def test_what_a_launcher_has_left_in_the_environment_is_one_line(here, monkeypatch, capsys, name):
    monkeypatch.setenv(name, LEFT_OVER[name])
    assert main(["fit", "--method", "fedavg", "--data", "digits", "--rounds", "1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: the environment looks like that of ") and told.count("\n") == 1


@pytest.mark.parametrize("slot", KINDS)
def test_help_of_every_class(slot, capsys):
    """Its docstring without ``Args:``, and every argument that the run does not supply."""
    for name in known_names(KINDS[slot]):
        assert main(["fit", f"--{slot}.help", name]) == 0
        out = capsys.readouterr().out
        cls = find_class(name, KINDS[slot])
        assert cls.__doc__.strip()[:30] in out and "Args:" not in out
        assert set(re.findall(rf"^  --{slot}\.(\w+)", out, re.M)) == {*parameters(cls)} - KINDS[slot].supplied


TELLING = [["list"], ["--help"], *([name, "--help"] for name in MODULES)]
"""What only tells."""

TELLS = """
import contextlib, io, json, sys
from benchmark.cli import main

for words in json.loads(sys.argv[1]):
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        main(words)
    assert len(told.getvalue().splitlines()) > 5, words
print(json.dumps(sorted(sys.modules)))
"""


def test_what_only_tells_imports_nothing_heavy(tmp_path):
    command = [sys.executable, "-c", TELLS, json.dumps(TELLING)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not {*json.loads(done.stdout)} & {*HEAVY}


def test_a_command_that_is_stopped_says_what_resumes_it(here, monkeypatch, capsys):
    def stopped(*_, **__):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(MODULES["tune"], "run", stopped)
    assert main(["tune", "--paper", "toy.yaml"]) == STOPPED
    assert capsys.readouterr().err == "stopped by SIGTERM; the same command resumes\n"

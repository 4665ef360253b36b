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


@pytest.mark.parametrize("many", ["[", "- "])
def test_a_value_that_would_crash_the_parser_is_refused(here, capsys, many):
    assert main(["fit", "--method", "fedavg", "--data", "digits", "--model_args.width", many * 100_000]) == 2
    assert "nested too deeply" in capsys.readouterr().err


def test_a_grid_of_more_points_than_anybody_runs_is_refused_at_once(here, capsys):
    many = ",".join(str(number / 1e4) for number in range(1, 501))
    assert main(["fit", "--method", "fedavg", "--data", "digits", "--method.lr", many, "--data.beta", many]) == 2
    assert "a grid of 250,000 runs" in capsys.readouterr().err


def test_split_dotted():
    rest, dotted = split_dotted(
        ["fit", "--method=a", "--method.lambda-u", "1", "--data.beta=5e-1", "--roster.participants", "5",
         "--model-args.dropout", "5e-1", "--data-dir", "x-y", "--eval-every=2"]
    )  # fmt: skip
    assert rest == ["fit", "--method=a", "--data_dir", "x-y", "--eval_every=2"]
    assert dotted == {
        "method.lambda_u": "1",
        "data.beta": "5e-1",
        "roster.participants": 5,
        "model_args.dropout": 0.5,
    }


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


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "abc"), ("SLURM_NTASKS", "abc"), ("LT_CLI_USED", "1"), ("TORCHELASTIC_RUN_ID", "left over")],
)
def test_what_a_launcher_has_left_in_the_environment_is_one_line(here, monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    assert main(["fit", "--method", "fedavg", "--data", "digits", "--rounds", "1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: the environment looks like that of ") and told.count("\n") == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize("arguments", [["fit", "--config", "pipe.yaml"], ["status", "--paper", "pipe.yaml"]])
def test_a_pipe_is_no_configuration_and_no_suite(here, capsys, arguments):
    """Reading one may never end."""
    os.mkfifo("pipe.yaml")
    assert main(arguments) == 2
    assert "pipe.yaml: it is not a regular file" in capsys.readouterr().err


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


@pytest.mark.parametrize(("more", "again"), [([], ""), (["--overwrite"], " without --overwrite")])
def test_a_command_that_is_stopped_says_what_resumes_it(here, monkeypatch, capsys, more, again):
    def stopped(*_, **__):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(MODULES["tune"], "run", stopped)
    assert main(["tune", "--paper", "toy.yaml", *more]) == STOPPED
    assert capsys.readouterr().err == f"stopped by SIGTERM; the same command{again} resumes\n"

"""The command line: how it reads options, what it says of them, bad input in one line."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from benchmark import ROOT, cli
from benchmark.cli import COMMANDS, main, split_dotted
from benchmark.launch.signals import STOPPED
from benchmark.registry import KINDS, find_class, known_names
from datamodules.common.errors import Stopped
from toy_suite import HEAVY


@pytest.mark.parametrize("given", [["--slurm=--gpus-per-task=1 --nodes=2"], ["--slurm", "--gpus-per-task=1 --nodes=2"]])
def test_options_of_sbatch_stay_as_they_are_spelled(given):
    rest, _ = split_dotted(["table", *given, "--data-dir", "d"])
    assert rest == ["table", "--slurm=--gpus-per-task=1 --nodes=2", "--data_dir", "d"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "models"],  # so short that Python keeps it until the end
        ["--help"],
        ["fit", "--help"],  # longer than what a pipe's buffer in Python holds
        ["status", "--paper", "toy.yaml"],  # Rich writes at once
    ],
)
def test_a_reader_that_goes_away_is_no_missing_folder(here, arguments):
    program = started(arguments)
    program.stdout.close()
    assert program.stderr.read().splitlines()[-1] == "nobody reads the output any more"
    assert program.wait() == cli.UNREAD


def test_a_reader_of_errors_that_goes_away(here):
    """Nobody can be told; the exit code says it, and what was printed before stays."""
    program = started(["train"])
    program.stderr.close()
    assert program.stdout.read() == ""
    assert program.wait() == cli.UNREAD


def test_a_reader_of_progress_that_goes_away(here, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as errors, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", errors)
        assert main(["table", "--paper", "toy.yaml", "--wandb", "off", "--jobs", "1"]) == cli.UNREAD
    assert capsys.readouterr().out == ""


def started(arguments):
    """A program whose pipes hold what it prints until it is flushed, as they do by default."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "benchmark", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(arguments, **environment):
    """Exit code and errors of a program."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-m", "benchmark", *arguments], env=given, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_NTASKS", "abc"), ("TORCHELASTIC_RUN_ID", "left over")],
)
def test_what_a_launcher_has_left_in_the_environment_is_one_line(here, name, value):
    code, told = ended(["fit", "--method", "fedavg", "--data", "digits", "--rounds", "1"], **{name: value})
    assert code == 2 and told.startswith("error: the environment looks like that of ") and told.count("\n") == 1


def test_a_program_without_an_output_or_a_working_folder(here):
    """Nobody is told, and nothing is wrong; or one line says what is."""
    command = [sys.executable, "-m", "benchmark", "list"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], env=environment, stderr=subprocess.PIPE)
    assert (shell.returncode, shell.stderr) == (0, b"")
    gone = here / "gone"
    gone.mkdir()
    command = ["sh", "-c", f'rmdir {gone} && exec "$@"', "sh", *command]
    left = subprocess.run(command, env=environment, cwd=gone, capture_output=True, text=True)
    assert left.returncode == 2 and left.stderr.startswith("error: the working folder has been removed")


@pytest.mark.parametrize("option", ["--rounds", "--method.lr"])
@pytest.mark.parametrize("many", ["[", "- "])
def test_a_value_that_would_crash_the_parser_is_refused(here, capsys, option, many):
    assert main(["fit", "--method", "fedavg", "--data", "digits", option, many * 100_000]) == 2
    assert "nested too deeply" in capsys.readouterr().err
    (here / "deep.yaml").write_text("a: " + many * 100_000 if many == "[" else "a:\n " + many * 100_000)
    assert main(["fit", "--config", "deep.yaml"]) == 2
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--method", "rscfet", "--data", "digits"], "unknown method 'rscfet'; did you mean 'rscfed'?"),
        (["fit", "--method", "fedavg", "--data", "digit"], "unknown data set 'digit'; did you mean 'digits'?"),
        (["fit", "--data", "digits"], "--method is missing; it is one of cbafed, client_fixmatch, fed_consist, "),
        (["fit", "--method", "fedavg"], "--data is missing; it is one of ag_news, cifar10, "),
        (["fit", "--method.help"], "--method.help needs a value: cbafed, client_fixmatch, fed_consist, "),
        (["fit", "--method", "nowhere.Mine", "--data", "digits"], "No module named 'nowhere'; the folder it lies in "),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--method.lrr", "1"],
            "unknown method argument 'lrr'; did you mean 'lr'?",
        ),
        (["fit", "--method", "fedavg", "--data", "digits", "--data.beta", "x"], "--data.beta x: expected float\n"),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--data.partition", "dirichlt"],
            "data (Digits): --data.partition dirichlt: expected {dirichlet,pairs,iid}\n",
        ),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--method.clip_norm", "x"],
            "--method.clip_norm x: expected float or null\n",
        ),
        (["fit", "--method", "fedavg", "--data", "digits", "--data.data_dir", "x"], "'data_dir': give --data_dir "),
        (["fit", "--method", "fedavg", "--data", "digits", "--rounds", "0"], "rounds is 0; it must be at least 1"),
        (
            ["fit", "--method", "fedavg", "--data", "digits", "--precision", "16-true"],
            "precision '16-true' cannot be used",
        ),
        (["fit", "--method", "fedavg", "--data", "digits", "--roundz", "3"], "--roundz 3; did you mean --rounds?"),
        (["fit", "--lr", "0.1"], "--lr 0.1; did you mean --method.lr? ("),
        (["fit", "--method", "rscfed", "--dma_beta_labelled=1"], "=1; did you mean --method.dma_beta_labelled? ("),
        (["fit", "--method", "fedavg", "--data", "digits", "--beta", "1"], "--beta 1; did you mean --data.beta? ("),
        (["describe", "--data", "digits", "--beta", "0.3"], "--beta 0.3; did you mean --data.beta? ("),
        (["status", "--paper", "toy.yaml", "--lr", "1"], "--lr 1 (`--help` lists"),
        (["status"], "the following arguments are required: --paper (`--help` lists"),
        (["fit", "--method"], "argument --method: expected one argument (`--help` lists"),
        (["fit", "--rounds", "many"], "--rounds many: expected int"),
        (["fit", "--threads", "many"], "--threads many: expected int or auto"),
        (["fit", "--engine", "fast"], "--engine fast: expected {reference,slots}"),
        (["fit", "--config", "no.yaml"], "--config no.yaml: No such file or directory"),
        (["fit", "--method.lr"], "--method.lr needs a value"),
        (["fit", "--method.lr", "--rounds", "3"], "--method.lr needs a value"),
        (["fit", "--suite", "rscfet", "--row", "1/A/low"], "unknown paper 'rscfet'; did you mean 'rscfed'?"),
        (["fit", "--suite", "rscfed", "--row", "1/CIFAR-10/rscfed"], "did you mean '1/CIFAR-100/rscfed'? `s"),
        (["fit", "--suite", "toy.yaml", "--row", "1/a/lo", "--scale", "quick"], "did you mean '1/A/low'? `status"),
        (["fit", "--suite", "toy.yaml", "--row", "1/A/low", "--scale", "small"], "unknown scale 'small'"),
        (["fit", "--suite", "rscfed"], "--suite and --row go together"),
        (["fit", "--row", "1/A/low"], "--suite and --row go together"),
        (["fit", "--suite", "toy.yaml", "--row", "1/A/low", "--config", "x"], "--config and --suite both say where"),
        (["fit", "--suite", "rscfed", "--row", "4/SVHN/rscfed"], "name one of 4/SVHN/rscfed/labelled=1/unlabelled=4, "),
        (["fit", "--suite", "rscfed", "--row", "4/SVHN/improvement"], "difference of rscfed and fed_consist: name"),
        (["table", "--paper", "rscfet"], "unknown paper 'rscfet'; did you mean 'rscfed'?"),
        (["table", "--paper", "toy.yaml", "--scale", "papr"], "unknown scale 'papr'"),
        (["table", "--paper", "toy.yaml", "--tables", "9"], "unknown table '9'. Known: 1, 2"),
        (["table", "--paper", "toy.yaml", "--method.lr", "1"], "table takes no --method.lr"),
        (["status", "--paper", "toy.yaml", "--seeds", "one"], "--seeds one: write numbers separated by commas"),
        (["fit", "--method", "fedavg", "--data", "digits", "--seed", ","], "--seed ,: write numbers separated by"),
        (["status", "--paper", "toy.yaml", "--seeds", ""], "--seeds : write numbers separated by commas, e.g. 1,2,3"),
        (["table", "--paper", "toy.yaml", "--only", ","], "--only ,: there is nothing between the commas"),
        (["table", "--paper", "toy.yaml", "--tables=[]"], "--tables []: there is nothing between the commas"),
        (["table", "--paper", "toy.yaml", "--methods", " , "], "--methods , : there is nothing between the commas"),
        (["tune", "--paper", "toy.yaml", "--row", ","], "--row ,: there is nothing between the commas"),
        (["describe"], "--data is missing; it is one of ag_news, cifar10, "),
        (["describe", "--data", "digits", "--data.partition_file", "no.json"], "cannot use the partition file no.json"),
        (["train"], "train"),
        ([], "subcommand"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_on_stderr(here, fitted, capsys, arguments, message):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert message in err and err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err
    assert fitted == [] and out == ""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("arguments", [["fit", "--config", "pipe.yaml"], ["status", "--paper", "pipe.yaml"]])
def test_a_pipe_is_no_configuration_and_no_suite(here, fitted, capsys, arguments):
    """Reading one may never end."""
    os.mkfifo("pipe.yaml")
    assert main(arguments) == 2
    assert "pipe.yaml: it is no regular file" in capsys.readouterr().err and fitted == []


def test_help_of_a_method_lists_its_options(capsys):
    assert main(["fit", "--method.help", "rscfed"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("methods.rscfed.RSCFed: Random sampling consensus") and "Eqs. 5, 6" in out
    options = [line.split()[0] for line in out.splitlines() if line.startswith("  --")]
    assert "--method.lr" in options and "--method.model" not in options
    shown = " ".join(out.split())
    for text in (
        "--method.dma_distance {sum_tensor,global_l2} (default sum_tensor) paper L2 norm; released code sum of",
        "--method.lambda_u float (default 0.02) lambda_u weight of the consistency loss: paper none (1); released",
        "--method.clip_norm float or null (default 5.0) total gradient norm allowed before",
        "--method.reset_momentum {true,false} (default false) forget the optimiser's state",
    ):
        assert text in shown


def test_help_of_a_data_set_says_what_its_options_mean(capsys):
    assert main(["fit", "--data.help", "digits"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--data.partition {dirichlet,pairs,iid} (default dirichlet) dirichlet, pairs (a Dirichlet draw" in shown
    assert "--data.mean list[float] or null (default null) per-channel mean" in shown and "data_dir" not in shown


@pytest.mark.parametrize("slot", KINDS)
def test_help_of_every_class(slot, capsys):
    """Its docstring without ``Args:``, and every argument with a meaning."""
    for name in known_names(KINDS[slot]):
        assert main(["fit", f"--{slot}.help", name]) == 0
        out = capsys.readouterr().out
        assert find_class(name, KINDS[slot]).__doc__.strip()[:30] in out and "Args:" not in out
        lines = out.splitlines()
        bare = [a for a, b in zip(lines, [*lines[1:], ""], strict=True) if a[:4] == "  --" and b[:6] != " " * 6]
        assert bare == []


@pytest.fixture
def help_of(capsys):
    """Shows the help of a command, or of all."""

    def shown(*command):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        return capsys.readouterr().out

    return shown


def options_in(shown):
    """The options that a help explains."""
    return set(re.findall(r"^  (?:-\w, )?(--\w+)", shown, re.M)) - {"--help"}


def test_help_of_fit_says_what_labels_and_readings_are(help_of):
    shown = " ".join(help_of("fit").split())
    for text in (
        "a label in the record (quick, small, laptop, lite, board, paper or custom); it changes no",
        "last (final in records)",
        "the mean of the global weights of the last so many rounds (all, if the run is shorter)",
    ):
        assert text in shown


@pytest.mark.parametrize("width", [1, 80, 120])
def test_help_is_plain_and_fits_the_terminal(width, monkeypatch, help_of):
    """No marks of docstrings, no types of Python, no defaults that say nothing; only the usage names long options."""
    monkeypatch.setenv("COLUMNS", str(width))
    commands = {name: help_of(name) for name in cli.COMMANDS}
    for shown in (help_of(), *commands.values()):
        about = shown.partition("\n\n")[2]
        assert not re.findall(r"``|type: |default: null|default: False", about)
        assert max(map(len, about.splitlines())) <= max(width, cli.LEAST_COLUMNS)
    shown = " ".join(commands["table"].split())
    assert ".yaml file (required)" in shown and "(default: quick)" in shown
    assert "(required)" not in commands["plot"]


def test_help_says_what_a_value_is_counted_in(help_of):
    shown = [help_of(name) for name in cli.COMMANDS]
    table = " ".join(help_of("table").split())
    for text in ("--jobs N ", "--client_memory GB", "--checkpoint_every_s SECONDS", "--slurm_at_once TASKS"):
        assert text in table
    assert {f"--{name}" for name in cli.UNITS} <= set.union(*map(options_in, shown))


def test_options_are_frozen(help_of):
    names = {name: options_in(help_of(name)) for name in cli.COMMANDS}
    suite = {"--paper", "--scale", "--seeds", "--results_dir"}
    engine = {"--accelerator", "--engine", "--slots", "--replay", "--client_memory"}
    where = {*engine, "--data_dir", "--checkpoint_every_s", "--wandb", "--logger", "--callbacks"}
    where |= {"--wandb_project", "--wandb_entity", "--wandb_group", "--wandb_tags"}
    assert names == {
        "fit": {"--config", "--suite", "--row", "--method", "--data", "--model", "--rounds", "--seed", "--scale",
                "--eval_every", "--last_k", "--report", "--precision", "--devices", "--num_nodes", "--threads"}
        | {"--average_last", "--results_dir", "--nonfinite", "--sums", "--dry_run", "--overwrite", "--export"}
        | where,
        "table": {"--jobs", "--tables", "--methods", "--only", "--readme", "--slurm", "--precision", "--threads"}
        | {"--dry_run", "--overwrite", "--slurm_bundle", "--slurm_at_once"}
        | suite
        | where,
        "admit": {"--jobs", "--paper", "--scale", "--results_dir", "--threads"} | where,
        "tune": {"--jobs", "--row", "--overwrite", "--paper", "--scale", "--results_dir", "--threads"} | where,
        "enter": {"--jobs", "--method", "--table", "--overwrite", "--threads"} | suite | where,
        "status": suite | {"--runs"},
        "plot": {"--columns", "--labels", "--out", "--suite", "--row", "--scale", "--results_dir", "--axis"},
        "describe": {"--data", "--data_dir", "--seed", "--plot", "--export"},
        "verify": set(),
        "records": {"--check", "--export", "--papers", "--results_dir", "--data_dir"},
        "list": set(),
    }  # fmt: skip


TELLING = [["list"], ["--help"], *([name, "--help"] for name in cli.COMMANDS)]
"""What only tells."""

TELLS = """
import contextlib, io, json, sys
from benchmark.cli import main

known, found = set(), []
for words in [None, *json.loads(sys.argv[1])]:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        words and main(words)
    found.append([told.getvalue(), sorted(set(sys.modules) - known)])
    known = set(sys.modules)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What commands print and which modules they import, one after the other in one fresh process; first, to start."""
    here = tmp_path_factory.mktemp("nothing")
    command = [sys.executable, "-c", TELLS, json.dumps(TELLING)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    return dict(zip(("", *map(" ".join, TELLING)), json.loads(done.stdout), strict=True))


def test_starting_up_imports_nothing_heavy(told):
    text, imported = told[""]
    assert "benchmark.cli" in imported and not {*imported} & {*HEAVY} and text == ""


@pytest.mark.parametrize("words", TELLING, ids=" ".join)
def test_what_only_tells_imports_nothing_heavy(told, words):
    text, imported = told[" ".join(words)]
    assert not {*imported} & {*HEAVY} and len(text.splitlines()) > 5


@pytest.mark.parametrize(("more", "again"), [([], ""), (["--overwrite"], " without --overwrite")])
def test_a_command_that_is_stopped_says_what_resumes_it(here, monkeypatch, capsys, more, again):
    def stopped(*_, **__):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setitem(COMMANDS, "tune", stopped)
    assert main(["tune", "--paper", "toy.yaml", *more]) == STOPPED
    assert capsys.readouterr().err == f"stopped by SIGTERM; the same command{again} resumes\n"

"""``enter``: a stranger's method gets its row in a setting, by the rules, in one command."""

import shutil
import sys

import pytest
import yaml

from benchmark.cli import main
from benchmark.runs.lock import run_lock
from benchmark.suites.suite import load
from toy_suite import BOARD

MORE = {
    "low: {method: fedavg}": "low: {method: fedavg}, mid: {method: fed_consist, method.warmup_rounds: 1}",
    "rows: [{method: low}]}": "rows: [{method: low}, {method: mid}]}\n"
    "  two: {title: Two, datasets: [A], metrics: [acc], rows: [{method: low}]}\n"
    "  beside: {title: Beside, untuned: one}",
}
"""What the board has besides: another row, a table in which nothing is compared, and one at the papers' rates."""

MINE = """
from methods.fedavg import FedAvg


class Mine(FedAvg):
    \"\"\"Averages (an example, 2026).\"\"\"
"""
ENTER = ["enter", "--paper", "board.yaml", "--table", "one", "--method", "mine_of_a_stranger.Mine"]
ENTER += ["--method.lr", "0.24", "--jobs", "1", "--wandb", "off"]


def times(board, runs="**"):
    """When the records of these runs were written."""
    return {path: path.stat().st_mtime_ns for path in (board / "results").glob(f"{runs}/record.json")}


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A working folder with the board and the method, both new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    board = BOARD
    for one, both in MORE.items():
        board = board.replace(one, both)
    (tmp_path / "board.yaml").write_text(board)
    (tmp_path / "mine_of_a_stranger.py").write_text(MINE)
    return tmp_path


def test_a_method_gets_its_row_and_does_not_keep_it_when_it_is_edited(board, capsys, monkeypatch):
    """It is tuned, runs the setting's seeds beside the others, and is shown with them."""
    assert main(ENTER) == 0
    out = capsys.readouterr().out
    rows = [line.split("|")[1].strip() for line in out.splitlines() if "(3)" in line]
    assert sorted(rows) == ["Mine", "low", "mid"] and "One, A\n" in out and ", the best other row: " in out
    (chosen,) = load("board-Mine-one.yaml").tuned.own("quick").values()
    assert len(chosen["tried"]) == len(chosen["trials"]) >= 3
    seeds = sorted((board / "results/runs").glob("mine_of*"))
    assert len(seeds) == 6, "three at the tuned rate, and three at the method's own"
    before = times(board)
    assert main(ENTER) == 0  # nothing is run twice
    with run_lock(seeds[-1]):  # somebody works on a seed: nothing is deleted, and nothing tuned again
        assert main([*ENTER, "--overwrite"]) == 2
    assert f"{seeds[-1].name}: process" in capsys.readouterr().err
    assert times(board) == before

    (board / "mine_of_a_stranger.py").write_text(f"{MINE}    more = 0.5\n")
    monkeypatch.delitem(sys.modules, "mine_of_a_stranger", raising=False)
    for place in ("results/tuning/runs", "results/runs"):  # neither trials nor seeds of the earlier code count
        assert main(ENTER) == 2
        assert f"{place}/mine_of" in (said := capsys.readouterr().err) and "made by other code of mine_of" in said
        if "tuning" in place:
            for path in (board / place).glob("mine_of*"):
                shutil.rmtree(path)
    own, others = ("tuning/runs/mine_of*", "runs/mine_of*"), "runs/fed*"
    before = {pattern: times(board, pattern) for pattern in (*own, others)}
    assert main([*ENTER, "--overwrite"]) == 0
    for pattern in own:
        after = times(board, pattern)
        assert len(after) == len(before[pattern]) and not {*after.items()} & {*before[pattern].items()}
    assert times(board, others) == before[others]


def test_a_control_is_entered_with_its_row(board, capsys):
    """The method's own step without its unlabelled loss, tuned alike; the row is shown beside it."""
    (board / "mine_of_a_stranger.py").write_text(MINE.replace("fedavg", "fed_consist").replace("FedAvg", "FedConsist"))
    assert main([*ENTER, "--method.warmup_rounds", "1", "--control", "{lambda_u: 0}"]) == 0
    out = capsys.readouterr().out
    assert "Mine (labels alone) | " in out and "Mine to Mine (labels alone), its control: " in out
    suite = load("board-Mine-one.yaml")
    assert suite.spec.tables["one"].controls == {"Mine": "Mine (labels alone)"}
    assert {*suite.tuned.own("quick")} == {"one/A/Mine", "one/A/Mine (labels alone)"}
    row, control = (suite.run(suite.row(f"one/A/{name}", "quick"), "quick") for name in ("Mine", "Mine (labels alone)"))
    options = {"lr", "lr_unlabelled", "lambda_u"}
    one, other = row.config.method.init_args, control.config.method.init_args
    assert {name for name in one if one[name] != other[name]} - options == set() and other["lambda_u"] == 0
    assert one["warmup_rounds"] == other["warmup_rounds"] == 1


def test_a_suite_without_a_rule_of_tuning_gets_no_row(board, capsys):
    text = (board / "board.yaml").read_text()
    (board / "board.yaml").write_text(text[: text.index("    tuning:")])
    assert main(ENTER) == 2
    assert "board.yaml: scale quick has no entry `tuning`" in capsys.readouterr().err
    assert not list(board.glob("board-*.yaml"))


REFUSED = {"--table two": "compares rows in one", "--rounds 3": "--rounds", "--data.beta 3": "--data.beta"}


@pytest.mark.parametrize("more", REFUSED)
def test_what_cannot_be_entered(board, capsys, more):
    assert main([*ENTER, *more.split()]) == 2
    assert REFUSED[more] in capsys.readouterr().err and not list(board.glob("board-*.yaml"))


SEES_LABELS = """
    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.uses_oracle = True
"""


def test_a_method_that_sees_hidden_labels_is_not_entered(board, capsys):
    """It is asked as it stands, before any trial."""
    (board / "mine_of_a_stranger.py").write_text(MINE + SEES_LABELS)
    assert main(ENTER) == 2
    assert "cannot be ranked" in capsys.readouterr().err
    assert not list(board.glob("board-*.yaml")) and not (board / "results").exists()


def test_another_row_is_not_overwritten(board, capsys):
    (board / "board-Mine-one.yaml").write_text(yaml.safe_dump({"extends": "board.yaml", "paper": "board-Mine"}))
    assert main(ENTER) == 2
    assert "describes another row" in capsys.readouterr().err

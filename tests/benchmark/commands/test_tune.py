"""``tune`` as a command."""

import shutil
from pathlib import Path

from benchmark.cli import main
from benchmark.runs.lock import run_lock
from toy_suite import BOARD
from tuned_suites import made_up

TUNE = ["tune", "--paper", "board.yaml", "--row", "one/A/low", "--jobs", "1", "--wandb", "off"]


def test_trials_are_run_once_and_again_when_asked(tmp_path, monkeypatch, capsys):
    ran = made_up(monkeypatch, lambda run: 50.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board.yaml").write_text(BOARD)
    assert main(TUNE) == 0
    assert f"one/A/low: method.lr 0.03 of {len(ran)} tried" in capsys.readouterr().out
    first = [*ran]
    assert main([*TUNE, "--overwrite", "--threads", "0"]) == 2
    assert main(TUNE) == 0 and ran == first
    assert main([*TUNE, "--overwrite"]) == 0 and ran == first * 2
    folders = [*Path("results/tuning/runs").iterdir()]
    with run_lock(folders[-1]):  # somebody works on one of them, so nothing is deleted
        assert main([*TUNE, "--overwrite"]) == 2
    for path in folders:  # the scores are in the journal
        shutil.rmtree(path)
    assert main(TUNE) == 0 and ran == first * 2

"""Lightning's loggers and callbacks by name, and the W&B mirror, which can fail with no more than a warning."""

import sys
from unittest.mock import Mock

import pandas as pd
import pytest
import wandb
from lightning.pytorch.callbacks import LambdaCallback

import run_folders
from benchmark.config import Run, Runtime
from benchmark.runs.loggers import callbacks, choose_mode, mirror_run, mirror_tables
from datamodules.common.errors import ConfigError

BEGUN = {
    "config": {"seed": 1},
    "partition_hash": "ab",
    "code_version": "abc123",
    "timing": {"started": "2026-01-02T03:04:05.678+00:00"},
}
RECORD = {"final": {"acc": 1.0}, "best": {"acc": 2.0}, "last_k_mean": {}, "bytes_up": 1, "bytes_down": 2}
RUN = run_folders.RUN.replace(runtime=Runtime(wandb="offline"))


@pytest.fixture(autouse=True)
def no_account(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_RUN_GROUP", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture
def service(monkeypatch):
    """W&B, as far as the mirror uses it: what its runs are given, and what they are told."""
    made = Mock(summary={})
    made.init.return_value = made
    monkeypatch.setattr("wandb.init", made.init)
    return made


def online(folder, record=BEGUN):
    return mirror_run(RUN.replace(runtime=Runtime(wandb="online")), folder, record)


def test_auto(monkeypatch, tmp_path):
    assert choose_mode("auto", "quick") == "off"
    assert choose_mode("auto", "paper") == choose_mode("auto", "custom") == "off"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password x")
    assert choose_mode("auto", "paper") == "online" and choose_mode("auto", "quick") == "off"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert choose_mode("auto", "paper") == "off"
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert choose_mode("auto", "paper") == "online"
    for asked, mode in {"disabled": "off", "dryrun": "offline", "online": "online"}.items():
        monkeypatch.setenv("WANDB_MODE", asked)
        assert choose_mode("auto", "quick") == choose_mode("auto", "paper") == mode
    assert [choose_mode(mode, "paper") for mode in ("off", "offline", "online")] == ["off", "offline", "online"]


@pytest.mark.filterwarnings("error::UserWarning")
def test_offline_files_hold_rows_and_tables(tmp_path):
    path = tmp_path / "run"
    with mirror_run(RUN, path, BEGUN) as mirror:
        mirror.row({"round": 0, "acc": 12.5, "auc": None, "timing": {"seconds": 0.5}})
        mirror.record(RECORD, [])
    frames = {"1": pd.DataFrame({"method": ["x"], "ours": [1.5]}), "2": pd.DataFrame()}
    mirror_tables("offline", tmp_path / "results", "paper", "toy-paper", frames)
    written = list(path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(written) == 1 and b"12.5" in written[0].read_bytes()
    (table,) = (tmp_path / "results").rglob("*.table.json")  # an empty one is no table
    assert '[["x",1.5]]' in table.read_text().replace(" ", "")


def test_a_summary_has_each_number_by_itself_and_classes_have_names(tmp_path, service):
    """``best/acc`` can be a column of W&B's list of runs; the confusion matrix is a table. Rounds are the x-axis:
    W&B's own steps count calls, from 0 again in every part of a run.
    """
    mirror = online(tmp_path)
    mirror.row({"round": 19, "acc_by_class": [50.0, None], "timing": {"seconds": 0.5}}, ["cat", "dog"])
    best = {"acc": 2.0, "acc_by_class": [1.0, 3.0]}
    mirror.record({**RECORD, "best": best, "confusion": ["5 1", "0 7"]}, ["cat", "dog"])
    assert service.summary == {"final/acc": 1.0, "best/acc": 2.0, "bytes_up": 1, "bytes_down": 2}
    row, matrix = (call.args[0] for call in service.log.call_args_list)
    service.define_metric.assert_called_once_with("*", step_metric="round")
    assert row == {"acc_by_class/cat": 50.0, "timing/seconds": 0.5, "round": 19}
    assert matrix["confusion"].columns == ["true class", "cat", "dog"]
    assert matrix["confusion"].data == [["cat", 5, 1], ["dog", 0, 7]]


def test_runs_are_filed_by_scale_or_where_the_variables_say(tmp_path, service, monkeypatch):
    """Those of scale quick only where W&B is asked for by name."""
    with online(tmp_path) as mirror:
        assert not service.init.called, "it starts with its first row"
        mirror.row({"round": 0})
        mirror.row({"round": 1})
    service.finish.assert_called_once_with(exit_code=0)
    for logger in (None, "wandb"):
        mirror_run(RUN.replace(scale="quick", runtime=Runtime(logger=logger)), tmp_path, BEGUN).row({"round": 0})
    monkeypatch.setenv("WANDB_PROJECT", "p")
    monkeypatch.setenv("WANDB_RUN_GROUP", "g")
    monkeypatch.setenv("WANDB_NAME", "n")
    online(tmp_path).row({"round": 0})
    started = [call.kwargs for call in service.init.call_args_list]
    filed = [(init["project"], init["group"], init["name"]) for init in started]
    own = "fedavg on digits seed 1"
    assert filed == [("fssl-bench", "custom", own), ("fssl-bench", "quick", own), ("p", "g", "n")]
    assert {init["resume"] for init in started} == {"allow"}  # else `wandb sync` overwrites the first part


def test_a_run_that_starts_over_is_another_run_in_wandb(tmp_path, service):
    """Else its curves would go on after those of the first, or of a colleague's run of the same settings."""
    for started in ("678", "678", "679"):
        online(tmp_path, BEGUN | {"timing": {"started": started}}).row({"round": 0})
    first, resumed, again = (call.kwargs["id"] for call in service.init.call_args_list)
    assert first == resumed != again


def test_rows_of_a_table_can_be_told_apart(tmp_path, service):
    """Two rows may have the same method."""
    mirror_run(Run(RUN.id, RUN.config, ("1/digits/mine",)), tmp_path, BEGUN).row({"round": 0})
    (started,) = service.init.call_args_list
    assert started.kwargs["name"] == "1/digits/mine seed 1"
    of_run = {"seed": 1, "row": "1/digits/mine", "partition_hash": "ab", "code_version": "abc123"}
    assert started.kwargs["config"] == of_run


def test_a_run_that_the_notebook_has_open_goes_on(tmp_path):
    with wandb.init(project="mine", mode="offline", dir=tmp_path, settings={"silent": True}) as mine:
        with mirror_run(RUN, tmp_path / "run", BEGUN) as mirror:
            mirror.row({"round": 0, "acc": 12.5})
        mine.log({"acc": 1.0})
        assert mine.summary["acc"] == 1.0
    assert list(tmp_path.glob("run/wandb/offline-run-*"))


def test_without_wandb_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(UserWarning, match="the run continues"), mirror_run(RUN, tmp_path, BEGUN) as mirror:
        mirror.row({"round": 0})


def test_a_mirror_that_breaks_on_the_way_is_one_warning(tmp_path, service):
    service.log.side_effect = RuntimeError("no network")
    with pytest.warns(UserWarning, match="no network") as caught, online(tmp_path) as mirror:
        for number in range(3):
            mirror.row({"round": number})
    assert len(caught) == 1


def test_callbacks_by_dotted_path():
    known = "lightning.pytorch.callbacks"
    (one,) = callbacks(f"{known}.LambdaCallback")
    assert isinstance(one, LambdaCallback)
    for path, why in {"collections.Counter": "not a subclass", f"{known}.EarlyStopping": "a whole Trainer"}.items():
        with pytest.raises(ConfigError, match=why):
            callbacks(path)

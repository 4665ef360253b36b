"""Submissions: a whole one holds, each planted fault is found at its point, and a second run confirms the first."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from benchmark.cli import main
from benchmark.config import Runtime
from benchmark.contract import checks
from benchmark.files import read_yaml
from benchmark.report import leaderboard
from benchmark.runs import records
from benchmark.submission.checking import check
from benchmark.submission.folder import importable, own_row
from benchmark.suites.suite import load
from datamodules.common.errors import ConfigError
from run_folders import change
from toy_suite import BOARD

MINE = '''
from methods.fedavg import FedAvg
from shares_to_submit import SHARE


class Mine(FedAvg):
    """Averages (an example, 2026)."""

    def learning_rate(self):
        return SHARE * super().learning_rate()
'''
FILES = {"mine_to_submit.py": MINE, "shares_to_submit.py": "SHARE = 0.9\n"}
RUN = ["--wandb", "off", "--accelerator", "cpu"]


def check_that_it_is_named(method):
    assert method == "mine_to_submit.Mine"


def check_that_it_is_text(method):
    assert isinstance(method, str)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A folder with a board, its records, and a submission of a method that was entered there."""
    place = tmp_path_factory.mktemp("stranger")
    with pytest.MonkeyPatch.context() as patch:
        _at(place, patch)
        (place / "board.yaml").write_text(BOARD)
        write_method(place)
        enter = ["enter", "--paper", "board.yaml", "--method", "mine_to_submit.Mine", "--table", "one", "--jobs", "1"]
        assert main([*enter, *RUN]) == 0
        assert main(["submit", "--paper", "board-Mine-one.yaml", "--scale", "quick", "--out", "mine"]) == 0
    return place


@pytest.fixture
def place(packed, tmp_path, monkeypatch):
    """A copy of it to spoil, which is the working folder."""
    copy = tmp_path / "copy"
    shutil.copytree(packed, copy)
    _at(copy, monkeypatch)
    for name in FILES:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
        (copy / name).unlink()  # a maintainer has it in the submission alone
    return copy


def write_method(place):
    for name, text in FILES.items():
        (place / name).write_text(text)


def _at(place, patch):
    patch.chdir(place)
    patch.syspath_prepend(str(place))
    patch.setattr("benchmark.runs.folder.code_version", lambda: "abc123")
    patch.setattr(checks, "CHECKS", (check_that_it_is_named, check_that_it_is_text))


def run_of(seed, folder="mine"):
    (path,) = [
        path
        for path in Path(folder, "runs").glob("*Mine*")
        if json.loads((path / "record.json").read_text())["config"]["seed"] == seed
    ]
    return path


def edited(file, edit):
    values = read_yaml(Path(file))
    edit(values)
    Path(file).write_text(yaml.safe_dump(values))


def failing():
    """The points that fail, by name, with what is wrong."""
    points = check(Path("mine"), Path("results"))
    return {point.name: " ".join(point.problems) for point in points if point.problems}


def test_a_whole_submission_holds(place, capsys):
    assert sorted(path.name for path in Path("mine").iterdir()) == [
        "mine_to_submit.py", "runs", "shares_to_submit.py", "submission.yaml", "suite.yaml", "tuned",
    ]  # fmt: skip
    assert main(["submit", "--check", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.count("holds ") == 8 and "all 8 points hold" in out
    assert main(["submit", "--check", "mine", "--contract"]) == 0
    assert "2/2" in capsys.readouterr().err


def test_nothing_is_packed_over_a_folder_or_without_tuning(place, capsys):
    write_method(place)
    pack = ["submit", "--paper", "board-Mine-one.yaml", "--scale", "quick"]
    assert main([*pack, "--out", "mine"]) == 2 and "exists already" in capsys.readouterr().err
    Path("tuned/board-Mine-quick.yaml").unlink()
    assert main(pack) == 2 and "`enter` tunes" in capsys.readouterr().err
    assert main(["submit", "--paper", "board.yaml", "--scale", "quick"]) == 2
    assert "extends a leaderboard by one row" in capsys.readouterr().err
    assert not Path("submissions").exists()


def test_a_submission_is_packed_into_a_folder_that_a_link_leads_to(place):
    write_method(place)
    elsewhere = place.parent / "a" / "large" / "disk"
    elsewhere.mkdir(parents=True)
    (place / "submissions").symlink_to(elsewhere)
    assert main(["submit", "--paper", "board-Mine-one.yaml", "--scale", "quick"]) == 0
    assert load("submissions/board-Mine-one/suite.yaml").extended.paper == "board"


def test_a_method_in_a_package_is_packed_as_one(place):
    write_method(place)
    (place / "mine_to_submit.py").unlink()
    (place / "mine_to_submit").mkdir()
    (place / "mine_to_submit" / "__init__.py").write_text(MINE)
    assert main(["submit", "--paper", "board-Mine-one.yaml", "--scale", "quick", "--out", "again"]) == 0
    assert Path("again/mine_to_submit/__init__.py").exists() and not Path("again/mine_to_submit.py").exists()


def test_a_submission_is_of_one_row(tmp_path):
    """A table of two data sets makes two of it."""
    two = BOARD.replace("{A: {}}", "{A: {}, B: {}}").replace("datasets: [A]", "datasets: [A, B]")
    (tmp_path / "board.yaml").write_text(two)
    mine = {"labels": {"mine": {"method": "fedavg"}}, "tables": {"one": {"rows": [{"method": "mine"}]}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"extends": "board.yaml", "paper": "mine", **mine}))
    with pytest.raises(ConfigError, match=r"by one row, but this by one/A/mine, one/B/mine; .* table of one data set"):
        own_row(load(str(tmp_path / "mine.yaml")))


SUITE, TUNED, ABOUT = "mine/suite.yaml", "mine/tuned/board-Mine-quick.yaml", "mine/submission.yaml"


def row_sets(**options):
    """The row in the submission's suite gets an option; ``__`` stands for the dot."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    edited(SUITE, lambda suite: suite["tables"]["one"]["rows"][0]["set"].update(given))


def environment(seed, **entries):
    change(run_of(seed), lambda record: record["environment"].update(entries))


def ran_elsewhere_too(seed):
    """The folder also has a run of this seed that was made on another machine."""
    path = run_of(seed)
    shutil.copytree(path, more := path.with_name("more"))
    change(more, lambda record: record["environment"].update(cpu="Another"))


def copied(seed):
    """The folder has a second run of this seed, so that one could be chosen."""
    shutil.copytree(path := run_of(seed), path.with_name("more"))


def labels_for_the_server():
    """The board keeps images from everybody, and the method asks for their labels."""
    edited("board.yaml", lambda board: board["base"]["set"].update({"data.validation": 50}))
    file = Path("mine/mine_to_submit.py")
    file.write_text(file.read_text() + "\n    uses_validation = True\n")


FAULTS = {
    "a seed is missing": ("complete", "seed 1", lambda: shutil.rmtree(run_of(1))),
    "a file is missing": ("complete", "has no config.yaml", lambda: (run_of(1) / "config.yaml").unlink()),
    "rows were changed": ("complete", "metrics.jsonl", lambda: (run_of(1) / "metrics.jsonl").write_text("{}\n")),
    "a run is not over": ("complete", "running", lambda: change(run_of(1), lambda r: r.update(status="running"))),
    "another network": ("configuration", "model", lambda: change(run_of(2), lambda r: r["config"].update(model="mlp"))),
    "other clients": ("partitions", "seed 0", lambda: change(run_of(0), lambda r: r.update(partition_hash="f" * 64))),
    "nothing to compare with": ("partitions", "results/runs", lambda: shutil.rmtree("results/runs")),
    "another choice": (
        "tuning",
        "held_out_images",
        lambda: edited(TUNED, lambda t: t["one/A/Mine"].update(held_out_images=9)),
    ),
    "no trials": ("tuning", "no trial of the rule", lambda: edited(TUNED, lambda t: t["one/A/Mine"].pop("trials"))),
    "another grid, seed or held-out part": ("tuning", "no trial of the rule", lambda: row_sets(method__momentum=0.5)),
    "local changes": (
        "code",
        "abc123-dirty",
        lambda: [environment(seed, code_versions=["abc123-dirty"]) for seed in range(3)],
    ),
    "two versions": (
        "code",
        "seed 2 has several versions of the code: abc123, def456",
        lambda: environment(2, code_versions=["abc123", "def456"]),
    ),
    "two machines": ("code", "seed 2 has several kinds of machines", lambda: ran_elsewhere_too(2)),
    "another source": ("method", "seed 1", lambda: environment(1, method_sources=["0" * 12])),
    "edited in between": (
        "method",
        "seed 1: made with source 000000000000 and 111111111111",
        lambda: environment(1, method_sources=["0" * 12, "1" * 12]),
    ),
    "no source": ("method", "no digest", lambda: environment(1, method_source=None, method_sources=[])),
    "a check failed": (
        "contract",
        "it draws",
        lambda: edited(ABOUT, lambda a: a["contract"]["checks"].update({"that_it_is_named": "it draws"})),
    ),
    "a check was not run": (
        "contract",
        "not run: that_it_is_text",
        lambda: edited(ABOUT, lambda a: a["contract"]["checks"].pop("that_it_is_text")),
    ),
    "a seed twice": ("configuration", "runs/more: another run of seed 2", lambda: copied(2)),
    "no checks at all": (
        "contract",
        "not run: that_it_is_named, that_it_is_text",
        lambda: edited(ABOUT, lambda a: a.update(contract="passed")),
    ),
    "a row of others": (
        "row",
        "a row of other",
        lambda: [
            edited("board.yaml", lambda board: board["labels"].update(other={"method": "fedavg"})),
            edited(SUITE, lambda suite: suite["tables"]["one"]["rows"].append({"method": "other"})),
        ],
    ),
    "labels that are kept from everybody": ("row", "the labels of 50 images", labels_for_the_server),
    "data of its own": ("row", "data.beta", lambda: row_sets(data__beta=5.0)),
    "a scale of its own": (
        "row",
        "scales",
        lambda: edited(SUITE, lambda suite: suite.update(scales={"quick": {"note": "mine"}})),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(place, fault):
    point, told, plant = FAULTS[fault]
    plant()
    assert told in failing()[point]


@pytest.mark.parametrize("fault", ["a seed is missing", "other clients", "two versions", "a check failed", "no trials"])
def test_a_fault_fails_its_own_point_alone(place, fault):
    point, _, plant = FAULTS[fault]
    plant()
    assert list(failing()) == [point]


def test_seeds_may_be_of_other_code_and_machines_and_it_is_said_where_the_reference_is(place):
    """As the board's are: the rules ask for one version and machine within a seed."""
    environment(2, code_versions=["def456"], cpu="Another")
    assert not failing()
    code = next(point for point in check(Path("mine"), Path("results")) if point.name == "code")
    assert "abc123 (seed 0, 1), def456 (seed 2)" in code.found and "Another" in code.found
    assert "low has other code or another machine in seed 2" in code.found


def test_all_faults_are_told_at_once(place, capsys):
    for fault in ("a seed is missing", "other clients", "another choice", "two versions"):
        FAULTS[fault][2]()
    assert main(["submit", "--check", "mine"]) == 1
    out = capsys.readouterr().out
    for told in ("FAILS  complete", "FAILS  partitions", "FAILS  tuning", "FAILS  code", "4 of 8 points fail"):
        assert told in out


@pytest.mark.parametrize(
    ("name", "change"), [("mine_to_submit.py", ("SHARE *", "0.8 *")), ("shares_to_submit.py", ("0.9", "0.8"))]
)
def test_a_changed_method_fails_though_its_records_agree(place, name, change):
    file = Path("mine") / name
    file.write_text(file.read_text().replace(*change))
    assert {"method", "contract"} <= failing().keys()


def test_a_module_that_is_not_in_the_folder_is_told(place):
    """Although it can be imported here."""
    Path("mine/shares_to_submit.py").rename("shares_to_submit.py")
    assert f"made of {place / 'shares_to_submit.py'}, which is neither" in failing()["method"]


def test_a_run_with_a_further_seed_is_told(place):
    path = run_of(2)
    shutil.copytree(path, path.with_name("more"))
    change(path.with_name("more"), lambda record: record["config"].update(seed=25))
    assert "seed 25 is not one of the suite's" in failing()["configuration"]


def test_what_is_no_submission(place, capsys):
    assert main(["submit", "--check", "results"]) == 2 and "no suite.yaml" in capsys.readouterr().err
    Path("mine/mine_to_submit.py").unlink()
    assert main(["submit", "--check", "mine"]) == 2 and "mine_to_submit" in capsys.readouterr().err
    assert main(["submit"]) == 2 and "needs one of" in capsys.readouterr().err
    assert main(["submit", "--verify", "mine"]) == 2 and "--seed" in capsys.readouterr().err


def test_a_second_run_verifies_and_the_board_says_so(place, capsys):
    assert main(["submit", "--verify", "mine", "--seed", "1", *RUN]) == 0
    assert "verified: equal in all rounds" in capsys.readouterr().out
    suite = load("mine/suite.yaml")
    found = suite.verified.entries("quick")["one/A/Mine"]
    assert (found["seed"], found["equal"]) == (1, True) and found["submitted"] == found["again"]
    with importable(Path("mine")):
        suite = load("mine/suite.yaml")
        plan = suite.plan("quick")
        (setting,) = leaderboard.settings(suite, plan)
        page = leaderboard.markdown(suite, plan, [setting])
    assert setting.lines["verified"].to_dict() == {"low": "", "Mine": "seed 1, equal"}
    assert "seed 1, equal" in page and "A maintainer" not in page.partition("## One")[0]


def test_a_row_is_no_longer_verified_once_its_run_is_another(place):
    """After a change of the method, the row has new records."""
    assert main(["submit", "--verify", "mine", "--seed", "1", *RUN]) == 0
    path = run_of(1)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["acc"] += 0.5
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    change(path, lambda record: record.update(records.readings(rows, record["config"]["last_k"])))
    with importable(Path("mine")):
        suite = load("mine/suite.yaml")
        plan = suite.plan("quick", runtime=Runtime(results_dir="mine"))
        (setting,) = leaderboard.settings(suite, plan)
    assert setting.lines["verified"].to_dict() == {"low": "", "Mine": ""}


def test_other_numbers_are_not_verified(place, capsys):
    """On a machine that rounds alike, a run whose numbers are others does not confirm."""
    path = run_of(1)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["acc"] += 0.5
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    change(path, lambda record: record.update(records.readings(rows, record["config"]["last_k"])))
    assert main(["submit", "--verify", "mine", "--seed", "1", *RUN]) == 1
    assert "not verified: a different result" in capsys.readouterr().out
    assert not Path("mine/verified").exists()


def test_on_a_gpu_two_runs_need_not_be_equal(place, capsys):
    """Kernels of a GPU may add in another order each time, on the same model too."""
    assert main(["submit", "--verify", "mine", "--seed", "1", *RUN]) == 0
    shutil.rmtree("mine/verified")
    (again,) = Path("results/verification/runs").iterdir()
    path = run_of(1)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["acc"] += 0.5
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    change(path, lambda record: record.update(records.readings(rows, record["config"]["last_k"])))
    for one in (path, again):
        change(one, lambda record: record["environment"].update(gpu="A GPU", accelerator="gpu"))
    assert main(["submit", "--verify", "mine", "--seed", "1", *RUN]) == 0
    assert "verified: on a GPU, within the prediction interval" in capsys.readouterr().out


def test_a_reading_of_the_averaged_model_that_the_second_run_does_not_have_is_not_verified(place, capsys):
    """Its digest agrees and so do all rounds; only the reading that no row gives was changed."""
    board = Path("board.yaml").read_text().replace("report: last", "report: averaged")
    Path("board.yaml").write_text(board.replace("rounds: 2}", "rounds: 2, average_last: 2}"))
    write_method(place)
    shutil.rmtree("mine")
    for left in (*Path().glob("board-*.yaml"), *Path().glob("tuned/*")):
        left.unlink()
    enter = ["enter", "--paper", "board.yaml", "--method", "mine_to_submit.Mine", "--table", "one", "--jobs", "1"]
    assert main([*enter, *RUN]) == 0
    assert main(["submit", "--paper", "board-Mine-one.yaml", "--scale", "quick", "--out", "mine"]) == 0
    change(run_of(1), lambda record: record["averaged"].update(acc=record["averaged"]["acc"] + 3.0))
    assert main(["submit", "--verify", "mine", "--seed", "1", *RUN]) == 1
    assert "not verified: a different result" in capsys.readouterr().out

"""The measuring tools measure what they say; what they find is no test."""

import os
import subprocess
import time
from dataclasses import replace

import pytest
import torch

from benchmark.cli import main
from benchmark.federation.fit import Fit
from benchmark.federation.recording import record
from benchmark.perf import __main__ as command
from benchmark.perf import (
    agreement,
    goals,
    gpu,
    graphs,
    growth,
    loops,
    profiles,
    replays,
    sharpness,
    start,
)
from benchmark.perf.federations import Noise, arithmetic, federation, federation_of, tensor_cores
from benchmark.perf.measure import Section, interleaved, merged
from benchmark.perf.worker import TaskFailed, Worker, here, process, together
from benchmark.registry import KINDS, known_names
from datamodules.common.errors import ConfigError
from federations import sums_of
from methods.fedavg import FedAvg
from perf_tasks import fine, gone, meet, wrong


@pytest.mark.timeout(240)
def test_processes_run_at_the_same_time(tmp_path):
    """One after the other, they would wait for ever."""
    with process() as one, process(threads=2) as other:
        assert together([one, other], meet, str(tmp_path)) == [1, 2]


def test_released_way_cuts_no_view_too_many():
    """As many views as its batches hold, strong ones only where they are used."""
    made = sharpness.Released(torch.zeros(8, 32, 32, 3, dtype=torch.uint8).numpy(), torch.arange(8))
    cut = {"weak": 0, "strong": 0}

    def counted(name, view):
        return lambda x: cut.update({name: cut[name] + 1}) or view(x)

    weak, strong = counted("weak", sharpness.WEAK), counted("strong", sharpness.STRONG)
    assert len(list(made.batches(2, 2, weak, strong))) == 2 and cut == {"weak": 4, "strong": 4}
    assert len(list(made.batches(3, 1, weak))) == 1 and cut == {"weak": 7, "strong": 4}


def test_interleaved_takes_turns_and_gives_medians():
    calls = []
    taken = interleaved({"a": lambda: calls.append("a"), "b": lambda: (calls.append("b"), time.sleep(0.01))}, 2)
    assert calls == ["a", "b"] * 3
    assert taken["b"] >= 0.01 > taken["a"]


def test_section_shows_three_significant_digits():
    speed = iter([1.0, 2.0]).__next__
    text = Section("T", ["name", "x"], "note", speed).add([["a", 1234.5678], ["b", 0.012345]]).text(markdown=True)
    assert text.startswith("## T\n") and "1,235" in text and "0.0123" in text and "probe 1 -> 2" in text


def test_a_page_keeps_what_was_not_measured_anew():
    """Sections are replaced by title, and measuring twice changes nothing."""

    def page(before, **values):
        return merged(
            before, [Section(title, ["x"], "note", lambda: 1.0).add([[value]]) for title, value in values.items()]
        )

    both = page("", A="old a", B="old b")
    assert page("", A="old a", B="old b") == page(both) == both
    again = page(both, A="new a", C="new c")
    assert [line for line in again.splitlines() if line.startswith("#")] == ["# Speed", "## A", "## B", "## C"]
    assert "new a" in again and "old a" not in again and again.index("old b") < again.index("new c")
    below = both + "### A\n\na part of B, with ## in it\n"
    assert page(below) == below


def test_bare_loop_does_the_work_of_the_engine(monkeypatch):
    """From equal weights, views and order, the bare supervised epoch ends where the engine's visit ends."""
    data = Noise(256, 10, num_clients=2, partition="iid")
    made = federation("fed_consist", data, warmup_rounds=0, lr=loops.LR, momentum=loops.MOMENTUM)
    visit = next(v for v in made.visits(0) if v.labelled)
    site = data.client(visit.client)
    views = data.take("test", site.labelled)
    monkeypatch.setattr(data, "take", lambda view, index, generator: data_views(index))
    monkeypatch.setattr(loops, "bare_views", lambda zoomed, index, mean, std: views[index])
    order = torch.randperm(len(site.labelled), generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr(torch, "randperm", lambda *a, **k: order)

    def data_views(index):
        return views[(index[:, None] == site.labelled).nonzero()[:, 1]]

    model = made.method.model
    start = {name: value.clone() for name, value in model.state_dict().items()}
    upload = made.engine.run_visit(visit, made.engine.send(visit, made.server), None)[0].upload
    model.load_state_dict(start)
    loops.bare_supervised(model, views, site.labels, torch.zeros(3), torch.ones(3))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, upload.tensors[f"model.{name}"])
        assert not torch.equal(value, start[name])


def test_released_sharpness_step_is_the_engine_s():
    """The five-pass comparator and the shared forward of the method take the same step (float64)."""
    from methods.fl2 import FL2

    torch.manual_seed(0)

    class OneBatch(sharpness.Released):
        def batches(self, size, count, *views):
            return iter([(strong, strong)])

    made = OneBatch(torch.zeros(4, 32, 32, 3, dtype=torch.uint8).numpy(), torch.arange(4), batch=4)
    made.model.double()
    strong = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    start = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.client_steps(1)
    after = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.model.load_state_dict(start)
    method = FL2(made.model, lr=0.03, momentum=0.9, weight_decay=5e-4, lr_schedule="constant")
    batch = {"unlabelled": {"strong": strong, "y": torch.arange(4), "high": torch.ones(4, dtype=torch.bool)}}
    sums_of(method)
    Fit(method, []).compute(batch, 0)
    for name, value in made.model.named_parameters():
        assert not torch.equal(value, start[name])
        torch.testing.assert_close(value.detach(), after[name], rtol=1e-9, atol=1e-12)


def test_agreement_names_what_is_equal():
    """Equal bits are said to be equal; else the distance over what training has covered; an error is a cell."""
    start, end = torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])
    assert agreement.distance((start, end), end.clone()) == "equal"
    assert agreement.distance((start, end), end + torch.tensor([0.0, 0.5])) == pytest.approx(0.1)
    assert agreement.compared("nobody", "32-true", ["slots"], {})[0].startswith("failed: ConfigError: unknown method")


FLAGS = []


def flags():
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


class Notes(FedAvg):
    """It notes with which arithmetic it trains."""

    def on_train_start(self):
        FLAGS.append(flags())


def test_agreement_is_measured_without_tf32():
    """In matrix products and in convolutions, whatever runs do; afterwards all is as before."""
    FLAGS.clear()
    with tensor_cores(True):
        agreement.ends(f"{__name__}.Notes", "32-true", sizes=replace(FEW, images=40))
        assert flags() == ("high", True)
    assert set(FLAGS) == {("highest", False)}


FEW = agreement.Sizes(images=96, clients=2, batch=8)


def test_engines_agree_in_a_run_whose_labels_flow():
    """A method with pseudo-labels takes steps on them, and all engines end with the same bits."""
    for precision in agreement.PRECISIONS:
        assert agreement.compared("fixmatch", precision, agreement.OTHERS, {}, FEW) == ["equal"] * 2
    made = federation_of(agreement.configured("fixmatch", sizes=FEW), "cpu", slots=2)
    made.run()
    forms = [key[-1] for slot in made.engine.slots for key in slot.recorded]
    assert forms and any(stream == "unlabelled" for form in forms for stream, *_ in form)


def test_an_engine_that_fails_leaves_the_others_their_numbers(small_plan):
    """Its cell says so, and the best of the others is taken."""
    plan = replace(small_plan, slots=(1, 0))
    row = gpu.engine_row(plan, "fedavg", ["small_cnn", 4, "32-true", "no"], False)
    assert row[6].startswith("failed: ") and "slots" in row[6]
    assert min(row[4:6]) > 0 and row[7] == row[4] / row[5]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_one_recording_of_many_steps_takes_the_steps_of_many(precision):
    """The last of 48 steps has the same loss eagerly, with one step per recording, and with sixteen."""

    def last_loss(chunk, recorded):
        step, losses = graphs.step_of("small_cnn", 4, precision, torch.device("cpu")), []

        def several():
            losses.extend(step() for _ in range(chunk))

        several()
        if recorded:
            recording = record(several, torch.device("cpu"))
            for _ in range(48 // chunk - 2):
                recording.replay()
        return float(losses[-1])

    assert last_loss(48, False) == last_loss(1, True) == last_loss(graphs.MANY, True) > 0


def test_what_many_steps_in_one_recording_gain_is_a_ratio():
    row = graphs.row("small_cnn", 4, "32-true", "cpu", replays=1)
    assert row[:3] == ["small_cnn", 4, "32-true"] and all(value > 0 for value in row[3:6])
    assert row[6] == row[4] / row[5] and row[7] == ("worth it" if row[6] >= graphs.WORTH else "not worth it")
    assert row[8] > 0 and row[9] == row[4] / row[8]


def test_tf32_is_on_where_it_is_asked_for():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    for name, known, now in (("tf32", "32-true", ("high", True)), ("bf16-mixed", "bf16-mixed", before)):
        with arithmetic(name) as given:
            assert given == known
            assert now == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)


def test_covered_is_the_length_of_the_union():
    assert profiles.covered([(0, 2), (5, 6), (1, 3), (2, 2.5)]) == 4
    assert profiles.covered([]) == 0


GOAL = ("rscfed", "1/CIFAR-100/rscfed", "993", "300", "method.subsets=1")


def test_a_goal_is_a_row_at_full_size_with_random_images():
    """The paper's constants stay; options change what they name."""
    goal = goals.parsed(GOAL)
    config = goal.config()
    assert (goal.rounds, goal.limit) == (993, 300.0) and config.rounds == 1000
    assert config.method.init_args["subsets"] == 1 and config.method.init_args["warmup_rounds"] == 7
    data = config.data.init_args
    assert (data["images"], data["classes"], data["num_clients"], data["beta"]) == (50_000, 100, 10, 0.8)
    small = replace(goal, tiny=True).config()
    assert small.data.init_args["images"] == 200 and small.method.init_args["warmup_rounds"] == 7
    for words in (GOAL[:3], (*GOAL[:2], "many", "300"), (*GOAL, "word")):
        with pytest.raises(ConfigError, match="give PAPER ROW ROUNDS SECONDS"):
            goals.parsed(words)
    with pytest.raises(ConfigError, match="has no row"):
        goals.parsed(("rscfed", "nowhere", "1", "1")).config()


@pytest.mark.parametrize(
    ("rounds", "whole"), [(1, 3.0), (2, 1.0 + 8.0), (10, 1.0 + 8.0 + 8 * 3.0), (1000, 1.0 + 8.0 + 998 * 3.0)]
)
def test_a_goal_is_extrapolated(rounds, whole):
    """What came before, the first rounds, the mean for all others; a goal of one round is a further round."""
    goal = goals.parsed((*GOAL[:2], str(rounds), "100"))
    taken, recorded = [5.0, 3.0, 2.0, 4.0, 9.0], [True, True, False, False, True]
    assert goals.extrapolated(goal, 1.0, taken, recorded) == (3.0, pytest.approx(whole))


@pytest.mark.parametrize(("limit", "verdict"), [("1e9", "met"), ("0", "missed")])
def test_a_goal_is_met_or_missed(limit, verdict):
    """From the first round behind the warm-up; a line says from how many rounds."""
    goal = replace(goals.parsed((*GOAL[:3], limit)), tiny=True)
    row = dict(zip(goals.HEADERS, goals.measured(goal, "tf32", 2, "cpu", 100.0, averaged=1), strict=True))
    assert (row["measured"], row["slots"], row["goal"]) == (3, 2, verdict)
    assert row["all, s"] == pytest.approx(
        row["before round 0, s"] + row["first rounds, s"] + 991 * row["further, s/round"]
    )


def test_rounds_that_record_are_not_typical():
    """They are left out of the mean, unless there are no others."""
    assert goals.steady([9.0, 2.0, 4.0], [True, False, False]) == 3.0
    assert goals.steady([9.0, 5.0], [True, True]) == 7.0
    assert goals.steady([], []) == 0.0


@pytest.mark.timeout(240)
def test_a_task_that_fails_hangs_or_dies_leaves_the_others_alone():
    """The process goes on after an error, and is started anew after the rest; one that does not start has failed."""
    worker = Worker()
    try:
        with pytest.raises(TaskFailed, match=r"^ValueError: first line$"):
            worker(60, wrong)
        process = worker(60, os.getpid)
        assert worker(60, fine, 1) == 2 and worker(60, os.getpid) == process
        with pytest.raises(TaskFailed, match="ended with exit code 3"):
            worker(60, gone)
        worker.start_s = 0.0
        with pytest.raises(TaskFailed, match=r"^no process starts: TimeoutError"):
            worker(60, fine, 2)
        worker.start_s = 180.0
        assert worker(60, fine, 2) == 4 and worker(60, os.getpid) != process
        with pytest.raises(TaskFailed, match="stopped after 0 s"):
            worker(0.2, time.sleep, 100)
        assert worker(60, fine, 3) == 6
    finally:
        worker.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so(capsys):
    assert command.main(["gpu:fedavg", "--goal", *GOAL]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "gpu:fedavg: this machine has no GPU that torch can use; --trial runs the same code on the CPU"
    ]
    with pytest.raises(SystemExit):
        command.main(["gpu", "--goal", "rscfed"])
    assert "give PAPER ROW ROUNDS SECONDS" in capsys.readouterr().err


def test_all_words_are_understood_before_anything_is_measured(capsys):
    with pytest.raises(SystemExit):
        command.main(["partitions", "epochs"])
    told = capsys.readouterr()
    assert "epochs: give one of" in told.err and told.out == ""
    with pytest.raises(SystemExit):
        command.main(["partitions", "epochs:fedavgg"])
    told = capsys.readouterr()
    assert "unknown method 'fedavgg'; did you mean 'fedavg'?" in told.err and told.out == ""
    with pytest.raises(SystemExit):
        command.main(["partitions", "--write", "nowhere/speed.md"])
    told = capsys.readouterr()
    assert "--write nowhere/speed.md: there is no such folder" in told.err and told.out == ""


@pytest.fixture
def small_plan():
    """The plan of a GPU at trial size, with something that fails in every part."""
    bad = goals.Goal("rscfed", "nowhere", 1, 1.0, {})
    fewer = replace(FEW, images=40)
    plan = gpu.trial(gpu.GPUPlan(["fedavg", "nobody"], [goals.parsed(GOAL), bad], seconds=1000))
    return replace(plan, checked=["fedavg", "nobody"], precisions=["32-true"], sizes=fewer, speed=lambda: 1.0)


def test_the_plan_for_a_gpu_runs_on_the_cpu(small_plan, tmp_path):
    """All its parts; what fails is a line with a number, and below its table stands why; all of it is in the file."""
    page = tmp_path / "page.md"
    found = gpu.measure(small_plan, list(gpu.PARTS), here, lambda section: command.publish(section, page))
    text = page.read_text()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [section.title for section in found]
    assert {section.title.split(" (")[0].split(",")[0].split(":")[0] for section in found} == {
        "Agreement of engines and devices", "Engines", "Steps in one recording", "Goals", "Kernels of replayed visits",
    }  # fmt: skip
    agreed = found[0]
    assert agreed.rows[0] == ["fedavg", *["equal"] * 8]
    assert agreed.rows[1][1] == "failed [1]" and "[1] ConfigError: unknown method 'nobody'" in agreed.note
    for section in found:
        assert all(len(row) == len(section.headers) for row in section.rows), section.title
        failures = [any(str(cell).startswith("failed") for cell in row) for row in section.rows]
        if "`" in section.title:
            assert set(failures) == {"nobody" in section.title}, section.title
        elif section.title.startswith("Steps in one recording"):  # of networks, whatever the method
            assert not any(failures)
        else:
            assert failures[-1] and not failures[0], section.title


def test_the_trial_has_images_and_clients_enough_for_every_method():
    """At trial size all methods run, whoever holds labels; so what fails in a trial fails on the GPU."""
    sizes = gpu.trial(gpu.GPUPlan([], [])).sizes
    for method in known_names(KINDS["method"]):
        data = agreement.configured(method, sizes=sizes).config.data.init_args
        made = agreement.Noise(**data)
        made.place(torch.device("cpu"), torch.float32)
        made.setup()
        assert made.num_clients == agreement.FULL.clients, method


def test_time_is_up_says_so(small_plan):
    """A part that gets no time measures nothing, and leaves no line out."""
    (found,) = gpu.measure(replace(small_plan, seconds=0), ["agreement"], here, lambda section: None)
    assert [row[1] for row in found.rows] == ["failed [1]"] * 2 and "time of this part was up" in found.note


def test_growth_counts_what_clients_keep_and_what_is_saved():
    """A client keeps a momentum per parameter, in 4 bytes each; ten of them and the weights are in the checkpoint."""
    found = dict(zip(growth.HEADERS, growth.row("fedavg", "small_cnn", 10, 10, "ordered"), strict=True))
    kept = found["kept per client, MB"]
    assert kept == pytest.approx(4e-6 * found["parameters"], rel=1e-3)
    assert 1 < found["checkpoint, MB"] / (11 * kept) < 1.2
    images = 3e-6 * (16 * 16 * (40 + 40) + 20 * 20 * 40)  # stored, and enlarged for crops
    assert found["images only, MB"] == pytest.approx(images)
    assert found["s per round"] > 0 and found["saving, s"] > 0 and found["process, MB"] > images
    parts = found["in steps"], found["besides steps"]
    assert min(parts) > 0 and sum(parts) == pytest.approx(found["CPU s per round"])


LEAVES = """
import sys
from pathlib import Path

name, folder = sys.argv[-2:]
assert name == "--results_dir"
Path(folder, "runs").mkdir(parents=True)
Path("left").touch()
"""


def test_a_start_is_a_command_that_succeeds(monkeypatch, tmp_path):
    """Nothing is left behind, and a command that fails is no measurement."""
    monkeypatch.setenv("FSSL_KEEP_MEMORY", "0")
    python, name, *words = start.commands("fedavg")["one round of fedavg on digits"]
    assert (python, name) == ("-m", "benchmark")
    assert main([*words, "--results_dir", str(tmp_path / "results")]) == 0
    (tmp_path / "leaves_some.py").write_text(LEAVES)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start.call(["-m", "leaves_some"])
    assert not list(here.iterdir())
    with pytest.raises(subprocess.CalledProcessError):
        start.call(["-c", "1 / 0"])


class Burns(FedAvg):
    """A method whose hook between the steps takes long."""

    def on_train_batch_start(self, batch, batch_idx):
        until = time.process_time() + 0.005
        while time.process_time() < until:
            pass


def test_host_time_of_a_replayed_step_is_without_the_step():
    """A step whose operations take long costs no more than another; a hook between the steps that does is seen."""
    plain, tensors, _ = replays.host_seconds("fedavg", many=24)
    assert 0 < plain < 5e-3 and tensors == 2
    assert replays.host_seconds(f"{__name__}.Burns", many=24)[0] > 0.005 > plain
    assert replays.host_seconds("server_only", many=24)[:2] == (0.0, 0)  # its clients take no steps

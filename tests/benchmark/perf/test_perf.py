"""The measuring tools measure what they say; what they find is no test."""

import time
from pathlib import Path

import pytest
import torch

from benchmark.perf import agreement, epochs, loops, sharpness
from benchmark.perf.federations import Noise, federation
from benchmark.perf.measure import Processes, Section, interleaved, merged


def meeting(number: int, folder: str):
    """A unit that waits until the other process is there too, and tells who it is."""

    def unit(word: str):
        (Path(folder) / f"{word}{number}").touch()
        while len(list(Path(folder).glob(f"{word}*"))) < 2:
            time.sleep(0.01)
        return number, torch.get_num_threads()

    return unit


@pytest.mark.timeout(120)
def test_processes_run_at_the_same_time_and_answer_in_order(tmp_path):
    """One after the other, they would wait for ever."""
    both = Processes(meeting, 2, str(tmp_path), threads=1)
    assert both("first") == both("second") == [(0, 1), (1, 1)]
    both.close()


def test_released_way_cuts_no_view_too_many():
    """As many views as its batches hold, strong ones only where they are used."""
    made = sharpness.Released(torch.zeros(8, 32, 32, 3, dtype=torch.uint8).numpy(), torch.arange(8))
    cut = {"weak": 0, "strong": 0}
    for name in cut:
        view = getattr(made.views, name)
        setattr(made.views, name, lambda x, name=name, view=view: cut.update({name: cut[name] + 1}) or view(x))
    assert len(list(made.batches(2, 2))) == 2 and cut == {"weak": 4, "strong": 4}
    assert len(list(made.weak_batches(3, 1))) == 1 and cut == {"weak": 7, "strong": 4}


def test_interleaved_takes_turns_and_gives_medians():
    calls = []
    taken = interleaved({"a": lambda: calls.append("a"), "b": lambda: (calls.append("b"), time.sleep(0.01))}, 2)
    assert calls == ["a", "b"] * 3
    assert taken["b"] >= 0.01 > taken["a"]


def test_section_shows_three_significant_digits():
    text = Section("T", ["name", "x"], [["a", 1234.5678], ["b", 0.012345]], "note", (1.0, 2.0)).text(markdown=True)
    assert text.startswith("## T\n") and "1,235" in text and "0.0123" in text and "probe 1 -> 2" in text


def test_a_page_keeps_what_was_not_measured_anew():
    """Sections are replaced by title, and measuring twice changes nothing."""

    def page(before, **values):
        return merged(before, [Section(title, ["x"], [[value]], "note", (1.0, 1.0)) for title, value in values.items()])

    both = page("", A="old a", B="old b")
    assert page("", A="old a", B="old b") == page(both) == both
    again = page(both, A="new a", C="new c")
    assert [line for line in again.splitlines() if line.startswith("#")] == ["# Speed", "## A", "## B", "## C"]
    assert "new a" in again and "old a" not in again and again.index("old b") < again.index("new c")


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
    upload = made.engine.client(visit, made.server, None)[0]
    model.load_state_dict(start)
    loops.bare_supervised(model, views, site.labels, torch.zeros(3), torch.ones(3))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, upload.tensors[f"model.{name}"])
        assert not torch.equal(value, start[name])


def test_released_sharpness_step_is_the_engine_s(monkeypatch):
    """The five-pass comparator and the shared forward of the method take the same step (float64)."""
    from methods.fl2 import FL2

    torch.manual_seed(0)
    made = sharpness.Released(torch.zeros(32, 32, 32, 3, dtype=torch.uint8).numpy(), torch.arange(32) % 10)
    made.model.double()
    strong = torch.randn(32, 3, 32, 32, dtype=torch.float64)
    monkeypatch.setattr(made, "batches", lambda size, count: [(strong, strong)])
    start = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.client_steps(1)
    after = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.model.load_state_dict(start)
    method = FL2(made.model, lr=0.03, momentum=0.9, weight_decay=5e-4, lr_schedule="constant", cs_mask=False)
    batch = {"unlabelled": {"strong": strong, "y": torch.arange(32) % 10, "high": torch.ones(32, dtype=torch.bool)}}
    method.local_step(batch, 0, method.configure_optimizers())
    for name, value in made.model.named_parameters():
        assert not torch.equal(value, start[name])
        torch.testing.assert_close(value.detach(), after[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("labelled", [False, True])
def test_epoch_units_visit_the_client_they_say(labelled, monkeypatch):
    monkeypatch.setattr(epochs, "IMAGES", 64)
    assert epochs.visit(0, "fed_consist", labelled)() > 0
    loop, released = epochs.bare(labelled)
    loop()
    released()


def test_agreement_is_that_of_rounding(monkeypatch):
    """In double precision 1e-9 at most, in single precision more; a refused method has no number."""
    monkeypatch.setattr(agreement, "known_names", lambda kind: ["fedavg", "local_ssl"])
    (made,) = agreement.section()
    averaged, refused = (row[1:3] for row in made.rows)
    assert 0 < averaged[0] < 1e-9 < averaged[1] < 1e-3
    assert refused == ["-", "-"]

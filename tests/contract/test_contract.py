"""What every method owes to the framework, checked on real digits in the scenario it was made for."""

import inspect
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.federation.fit import Fit
from benchmark.registry import KINDS, find_class, known_names
from federations import flowing, make_data, make_federation, make_method, run_rows
from methods.base import Batch, FedMethod, Visit

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_is_finite_and_learns_something(method_name: str) -> None:
    """Three rounds end with finite numbers and moved weights."""
    federation = make_federation(method_name, **flowing(method_name))
    before = {k: v.clone() for k, v in federation.server.items()}
    rows = run_rows(federation)
    assert len(rows) == 3
    assert all(0 <= row["acc"] <= 100 for row in rows)
    assert all(bool(torch.isfinite(v).all()) for v in federation.server.values())
    assert any(not torch.equal(v, before[k]) for k, v in federation.server.items())


def test_pseudo_labels_flow(method_name: str) -> None:
    """In the runs that these tests compare, the semi-supervised branch is at work wherever a method has one."""
    method = make_method(method_name)
    if "unlabelled" not in method.views:
        pytest.skip("the method learns from labels alone")
    row = run_rows(make_federation(method_name, **flowing(method_name)))[-1]
    used = [row[k] for k in ("pseudo/selected", "pseudo/certain") if k in row]
    assert used == [] or max(used) > 0.0


def test_same_seed_same_bits(method_name: str) -> None:
    """Two runs of one seed agree to the last bit; another seed does not."""
    first, second = (run_rows(make_federation(method_name, **flowing(method_name))) for _ in range(2))
    assert first == second
    other = make_federation(method_name, **flowing(method_name))
    other.engine.around = replace(other.engine.around, seed=1)
    assert run_rows(other) != first


def test_resume_is_exact(method_name: str) -> None:
    """A checkpoint after any round, through a file of plain data, continues to the same bits."""
    whole = make_federation(method_name, **flowing(method_name))
    rows = run_rows(whole)
    for stop in (1, 2):
        part = make_federation(method_name, **flowing(method_name))
        part.server_phase(0, first=True)
        for number in range(stop):
            part.run_round(number)
            part.round += 1
        buffer = io.BytesIO()
        torch.save(part.state_dict(), buffer)
        buffer.seek(0)
        rest = make_federation(method_name, **flowing(method_name))
        rest.load_state_dict(torch.load(buffer, weights_only=True))
        assert run_rows(rest) == rows[stop:]
        assert all(torch.equal(v, whole.server[k]) for k, v in rest.server.items())


def test_order_of_visits_is_irrelevant(method_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that train in another order, as on several processes, give the same bits: no visit leaves a trace."""
    rows = run_rows(make_federation(method_name, rounds=2, **flowing(method_name)))

    def backwards(visits: list[Visit], ranks: int) -> list[list[Visit]]:
        return [sorted(visits, key=lambda v: (-v.client, v.repeat))]

    monkeypatch.setattr("benchmark.federation.loop.assign", backwards)
    assert run_rows(make_federation(method_name, rounds=2, **flowing(method_name))) == rows


def test_hidden_labels_are_not_read(method_name: str) -> None:
    """Training is the same when every hidden label is wrong."""
    data, poisoned = (make_data(make_method(method_name).scenario) for _ in range(2))
    hidden = torch.ones(len(poisoned._labels), dtype=torch.bool)
    for site in [*poisoned._clients, poisoned.server]:
        hidden[site.labelled] = False
    assert bool(hidden.any())
    poisoned._labels[hidden] = -1
    runs = [make_federation(method_name, data=d, **flowing(method_name)) for d in (data, poisoned)]
    for federation in runs:
        federation.server_phase(0, first=True)
        for number in range(2):
            federation.run_round(number)
    assert all(torch.equal(v, runs[1].server[k]) for k, v in runs[0].server.items())


def test_a_step_leaves_its_batch_alone(method_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step changes registered tensors only: its batch is as it was, and its loss is finite."""
    steps = []
    compute = Fit.compute

    def watched(self: Fit, batch: Batch, number: int) -> Any:
        before = {(s, f): v.clone() for s, fields in batch.items() for f, v in fields.items()}
        made = compute(self, batch, number)
        assert all(torch.equal(batch[s][f], v) for (s, f), v in before.items())
        steps.append(self.lightning_module.tallied("loss"))
        return made

    monkeypatch.setattr(Fit, "compute", watched)
    run_rows(make_federation(method_name, rounds=2, **flowing(method_name)))
    assert steps
    assert all(loss is not None and bool(loss.isfinite()) for loss in steps)


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_precisions(method_name: str, precision: str) -> None:
    """Double precision and bf16 autocast run; one round of float32 stays close to double precision."""
    rows = run_rows(make_federation(method_name, rounds=2, precision=precision, **flowing(method_name)))
    assert all(0 <= row["acc"] <= 100 for row in rows)


def test_bytes_are_counted(method_name: str) -> None:
    """What is sent is at least the shared tensors of every visit, and is counted on both ways."""
    federation = make_federation(method_name, rounds=1, **flowing(method_name))
    shared = sum(v.numel() * v.element_size() for v in federation.method.tensors("shared").values())
    row = run_rows(federation)[0]
    assert row["bytes_down"] >= row["visits"] * shared
    assert row["bytes_up"] <= row["bytes_down"] + 10_000


def test_clients_with_one_image_or_none(method_name: str) -> None:
    """A client with a single image, and one with nothing at all, do not break a round."""
    federation = make_federation(method_name, **flowing(method_name))
    sites = federation.data._clients
    site = sites[-1]
    keep = 1 if len(site.unlabelled) else 0
    sites[-1] = type(site)(site.labelled[: 1 - keep], site.labels[: 1 - keep], site.unlabelled[:keep])
    sites[-2] = type(site)(site.labelled[:0], site.labels[:0], site.unlabelled[:0])
    rows = run_rows(federation)
    assert all(bool(torch.isfinite(v).all()) for v in federation.server.values())
    assert len(rows) == 3


def test_docstring_names_its_sources(method_name: str) -> None:
    """The class says paper and venue, and holds the table hyperparameter | paper | released code | here."""
    doc = inspect.getdoc(find_class(method_name, KINDS["method"])) or ""
    assert re.search(r"\b(19|20)\d\d\b", doc), "name the paper with its year"
    assert "| hyperparameter |" in doc
    assert "| here |" in doc


def test_default_arguments_are_plain(method_name: str) -> None:
    """All hyperparameters can be written into a configuration file."""
    for value in make_method(method_name).hparams.values():
        assert isinstance(value, (int, float, str, bool, list, type(None)))


def test_shared_code_names_no_method() -> None:
    """Framework and data code never mention a method by name."""
    names = [n for n in known_names(KINDS["method"])]
    classes = [find_class(n, KINDS["method"]).__name__ for n in names]
    pattern = re.compile(r"\b(" + "|".join([*names, *classes]) + r")\b")
    for file in [*ROOT.glob("benchmark/**/*.py"), *ROOT.glob("datamodules/**/*.py"), *ROOT.glob("methods/parts/*.py")]:
        code = strip_prose(file.read_text())
        assert not pattern.search(code), f"{file.name} names a method: {pattern.search(code)}"


def test_base_class_alone_is_no_method() -> None:
    """Forgetting ``training_step`` says so."""
    with pytest.raises(NotImplementedError, match="must define training_step"):
        FedMethod(torch.nn.Identity()).training_step({}, 0)


def strip_prose(source: str) -> str:
    """Source without docstrings and comments."""
    return re.sub(r"#.*", "", re.sub(r'""".*?"""', "", source, flags=re.S))

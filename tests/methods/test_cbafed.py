"""CBAFed: released selection, thresholds, weights and residual connections, and guards."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from datamodules.base import SiteData
from datamodules.common.errors import RunError
from datamodules.partition.roster import Roster
from datamodules.views.batches import epoch
from federations import make_data, make_federation
from golden_files import load
from methods.base import Upload, Visit
from methods.cbafed import CBAFed, balanced_thresholds, class_share, tail_classes

SELECTION, WEIGHTS = load("cbafed/pseudo_label_tail_selection"), load("cbafed/aggregation_weights")
SEQUENCES = {case["name"]: case for case in load("cbafed/residual_sequences")["cases"]}


def client_of(logits: Tensor) -> SimpleNamespace:
    """A client whose images are logits, in stored order."""
    none = torch.zeros(0, dtype=torch.int64)
    return SimpleNamespace(
        data=SiteData(none, none, torch.arange(len(logits))),
        visit=Visit(labelled=False, size=len(logits)),
        generator=lambda purpose: None,
        views=lambda view, index, purpose, size: list(logits[index].split(size)),
    )


@pytest.mark.parametrize("case", SELECTION["cases"], ids=lambda c: c["name"])
def test_released_unlabelled_client(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it trains on, batch by batch and pixel by pixel, what it counts, and what it sends."""
    given, out = case["inputs"], case["outputs"]
    logits = torch.tensor(given["logits"])
    method = CBAFed(nn.Identity(), logits.shape[1], batch_size=given["batch_size"])
    tail = torch.zeros(logits.shape[1], dtype=torch.bool)
    tail[given["tail_classes"]] = True
    method.load_tensors({"thresholds": torch.tensor(given["thresholds"]), "tail": tail})
    monkeypatch.setattr(torch, "randperm", lambda n, generator=None: torch.arange(n))
    site, reported = client_of(logits), []
    site.report_pseudo_labels = lambda index, labels, selected: reported.append(int(selected.sum()))
    (work,) = method.local_work(site)
    stream = work.streams["pseudo"]
    assert torch.equal(stream.fields["x"], logits[stream.index])
    batches = [one["pseudo"] for one in epoch({"pseudo": stream}, SimpleNamespace(block=1024), lambda purpose: None)]
    places = torch.arange(len(stream.index)).split(given["batch_size"])[: len(batches)]
    for place, batch, pairs in zip(places, batches, out["train_batches_index_label"], strict=True):
        assert torch.stack([stream.index[place], batch["y"]], dim=1).tolist() == pairs
        assert torch.equal(batch["x"], logits[stream.index[place]])
    upload = method.make_upload(site)
    assert upload.weight == out["num_train"]
    assert upload.stats["counts"].tolist() == out["class_counts"]
    assert sum(reported) == out["num_train"]


@pytest.mark.parametrize("case", WEIGHTS["cases"], ids=lambda c: c["name"])
def test_released_weights(case: dict[str, Any]) -> None:
    """Weights and the average of every reference case, through ``aggregate``; the tenfold client as a mode."""
    given, out = case["inputs"], case["outputs"]

    class Entries(nn.Module):
        def __init__(self, values: dict[str, Any]) -> None:
            super().__init__()
            for name, value in values.items():
                self.register_buffer(name, torch.tensor(value))

    skin = case["name"].startswith("skin")
    mode = "multiplier:10" if skin else "plain"
    counts = [c / 10 if skin and i == 0 else c for i, c in enumerate(given["counts"])]
    method = CBAFed(Entries(given["clients"][0]), 2, warmup_rounds=0, labelled_weight_mode=mode)
    uploads = [
        Upload(
            Visit(round=1, client=i, labelled=i == 0),
            {f"model.{k}": torch.tensor(v) for k, v in state.items()},
            weight,
            {"counts": torch.tensor([weight, 0.0])},
        )
        for i, (state, weight) in enumerate(zip(given["clients"], counts, strict=True))
    ]
    weights = torch.tensor(method.weights(uploads))
    torch.testing.assert_close((weights / weights.sum()).tolist(), out["weights"], rtol=0, atol=1e-6)
    method.aggregate(uploads)
    for name in ("a", "running_mean"):
        found = method.model.get_buffer(name)
        torch.testing.assert_close(found, torch.tensor(out["aggregate"][name]), rtol=0, atol=1e-6)
    assert int(method.model.get_buffer("num_batches_tracked")) == int(out["aggregate"]["num_batches_tracked"])


def constant(method: CBAFed, value: float) -> dict[str, Tensor]:
    """A model of equal numbers, as uploaded."""
    return {k: torch.full_like(v, value) for k, v in method.tensors("shared").items()}


def test_server_connection_over_seventeen_rounds() -> None:
    """The released sequences through ``aggregate``: round 0 of stage 2 refers to the warm-up model."""
    for name in ("server_17_rounds_plus1_per_round", "server_17_rounds_given_aggregates"):
        given, method = SEQUENCES[name]["inputs"], CBAFed(nn.Linear(1, 1), 2, warmup_rounds=3)
        method.load_tensors(constant(method, given["warmup_value"]))
        values, seen = given.get("aggregates"), []
        for t in range(17):
            value = values[t] if values else float(method.model.bias.detach()) + 1
            visit = Visit(round=3 + t, labelled=True)
            method.aggregate([Upload(visit, constant(method, value), 5.0, {"counts": torch.ones(2)})])
            seen.append(float(method.model.bias.detach()))
        assert seen == pytest.approx(SEQUENCES[name]["outputs"], abs=1e-3)


def test_the_warm_ups_connection_is_the_released_clients() -> None:
    """With one labelled client, rounds are its epochs."""
    case = SEQUENCES["local_26_epochs_plus1_per_epoch"]
    method, seen = CBAFed(nn.Linear(1, 1), 2, warmup_rounds=26), []
    method.load_tensors(constant(method, 0.0))
    for t in range(26):
        value = float(method.model.bias.detach()) + 1
        method.aggregate([Upload(Visit(round=t), constant(method, value), 5.0, {"counts": torch.ones(2)})])
        seen.append(float(method.model.bias.detach()))
    assert seen == pytest.approx(case["outputs"], abs=1e-3)


@pytest.mark.parametrize("name", [name for name in SEQUENCES if name.startswith("local")])
def test_labelled_client_connection_over_epochs(name: str) -> None:
    """The released sequences through the hooks."""
    case = SEQUENCES[name]
    seen = epochs_of(Visit(round=3, labelled=True), case["inputs"]["epochs"])
    assert seen[-len(case["outputs"]) :] == pytest.approx(case["outputs"], abs=1e-3)


@pytest.mark.parametrize("visit", [Visit(round=3, labelled=False), Visit(round=2, labelled=True)])
def test_other_visits_are_not_connected(visit: Visit) -> None:
    """Of clients without labels, and in the warm-up."""
    assert epochs_of(visit, 11) == list(range(1, 12))


def epochs_of(visit: Visit, epochs: int) -> list[float]:
    """The model after every epoch, where training adds 1."""
    method, seen = CBAFed(nn.Linear(1, 1), 2, warmup_rounds=3), []
    method.visit = visit
    method.load_tensors(constant(method, 0.0))
    fit = SimpleNamespace(current_epoch=0)
    method.trainer = fit
    method.on_train_start()
    for fit.current_epoch in range(epochs):
        method.load_tensors(constant(method, float(method.model.bias.detach()) + 1))
        method.on_train_epoch_end()
        seen.append(float(method.model.bias.detach()))
    return seen


def test_a_round_where_nobody_used_anything_keeps_the_model_and_the_thresholds() -> None:
    """No labelled participant and nothing selected."""
    method = CBAFed(nn.Linear(1, 1), 10, warmup_rounds=0, res_server_alpha=0.0)
    before = {k: v.clone() for k, v in method.tensors("shared", "server").items() if k != "reference"}
    visit = Visit(round=1, labelled=False, size=9)
    method.aggregate([Upload(visit, constant(method, 7.0), 0.0, {"counts": torch.zeros(10)})] * 2)
    assert all(torch.equal(method.state_dict()[k], v) for k, v in before.items())


def test_all_labelled_clients_warm_up_whoever_is_drawn() -> None:
    method, roster = CBAFed(nn.Linear(1, 1), 2, warmup_rounds=3), Roster(5, labelled=(0, 2, 3), participants=1)
    rounds = [method.select_clients(round, roster)[0] for round in range(6)]
    assert rounds[:3] == [[0, 2, 3]] * 3
    assert all(len(drawn) == 1 for drawn in rounds[3:])


def test_clients_of_both_kinds_are_refused() -> None:
    """The method knows labelled and unlabelled clients only."""
    run = make_federation("cbafed", make_data("all_clients"), rounds=1, warmup_rounds=0)
    with pytest.raises(RunError, match="labelled and unlabelled images; set data"):
        run.run()


# --- class-balanced selection

THRESHOLDS = load("cbafed/threshold_from_counts")


@pytest.mark.parametrize("case", THRESHOLDS["cases"], ids=lambda c: c["name"])
def test_released_thresholds(case: dict[str, Any]) -> None:
    """Scaled shares, their spread, thresholds and tail classes of every reference case."""
    given, out = case["inputs"], case["outputs"]
    if given["kind"] == "round":
        counts = torch.tensor(given["labelled_counts"]).float() + torch.tensor(given["unlabelled_counts"])
    else:
        counts = torch.tensor(given["counts"]).float()
    share = class_share(counts)
    assert torch.equal(share, torch.tensor(out["p_tilde"]))
    assert float(share.std()) == pytest.approx(out["std"], abs=1e-9)
    found = balanced_thresholds(counts, given["tau"], given["tau_h"])
    assert torch.equal(found, torch.tensor(out["thresholds"]))
    tail = tail_classes(counts, beta=10 * given["tail_cut"])
    assert tail.nonzero()[:, 0].tolist() == out["tail_classes"]


@pytest.mark.parametrize("classes", [5, 10, 20])
def test_a_class_at_the_border_is_no_tail(classes: int) -> None:
    """Exactly 0.3 / C of the images is not less than that."""
    counts = torch.full((classes,), 970 / (classes - 1))
    counts[0] = 1000 * 0.3 / classes
    counts[1] += 1000 - counts.sum()
    assert not tail_classes(counts).any()
    counts[0] -= 1
    assert tail_classes(counts).nonzero()[:, 0].tolist() == [0]

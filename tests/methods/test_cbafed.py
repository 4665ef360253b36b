"""CBAFed: released selection, thresholds and weights, equalities of the sheet, guards, and its ablations."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from datamodules.base import SiteData
from datamodules.common.errors import RunError
from datamodules.digits import Digits
from datamodules.views.batches import epoch
from federations import (
    NUM_CLIENTS,
    make_data,
    make_method,
    plain_fabric,
    run_rows,
)
from golden_files import load
from methods.base import Stream, Upload, Visit
from methods.cbafed import (
    CBAFed,
    balanced_thresholds,
    class_share,
    tail_classes,
)
from methods.parts.labelled_clients import share_weights

EASY = {"cba_tau": 0.05, "cba_tau_h": 0.2, "tail_beta": 0.9}


class Net(nn.Module):
    """A small network with batch norm, for 32 x 32 images."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, 10]``."""
        return self.head(self.body(x))


def small(data: Digits, images: int = 40) -> Digits:
    """The same data with at most so many images per client."""
    for k, site in enumerate(data.clients):
        data.clients[k] = SiteData(site.labelled[:images], site.labels[:images], site.unlabelled[:images])
    return data


def federation(
    rounds: int = 3, data: Digits | None = None, double: bool = False, cls: type[CBAFed] = CBAFed, **args: Any
) -> Federation:
    """CBAFed around ``Net`` on a few images per client, in stage 2 from round 1 on."""
    torch.manual_seed(0)
    options = {"warmup_rounds": 1, "labelled_epochs": 3, "res_skip": 2, "batch_size": 16, **EASY, **args}
    method, data = cls(Net(), 10, **options), data or small(make_data())
    if double:
        method = method.double()
        data.place(torch.device("cpu"), torch.float64)
        small(data)
    return Federation(method, data, data.roster(0), plain_fabric(), rounds, seed=0)


def same(a: dict[str, Tensor], b: dict[str, Tensor], prefix: str = "model.") -> bool:
    """Whether two servers hold the same model, bit for bit."""
    return all(torch.equal(v, b[k]) for k, v in a.items() if k.startswith(prefix))


def pseudo_set(method: CBAFed, site: Any) -> Stream:
    """What an unlabelled client walks through in its only epoch."""
    (work,) = method.local_work(site)
    return (work() if callable(work) else work).streams["pseudo"]


SELECTION, WEIGHTS = load("cbafed/pseudo_label_tail_selection"), load("cbafed/aggregation_weights")
SEQUENCES = {case["name"]: case for case in load("cbafed/residual_sequences")["cases"]}


class FakeSite:
    """A client whose images are logits, in stored order."""

    def __init__(self, logits: Tensor) -> None:
        none = torch.zeros(0, dtype=torch.int64)
        self.logits, self.data = logits, SiteData(none, none, torch.arange(len(logits)))
        self.visit = Visit(labelled=False, size=len(logits))
        self.reported: list[tuple[Tensor, Tensor, Tensor]] = []

    def generator(self, purpose: str) -> None:
        """Nothing is random here."""

    def views(self, view: str, index: Tensor, purpose: str, size: int) -> list[Tensor]:
        """The logits in blocks."""
        return list(self.logits[index].split(size))

    def report_pseudo_labels(self, index: Tensor, labels: Tensor, selected: Tensor) -> None:
        """Keep what is reported."""
        self.reported.append((index, labels, selected))


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
    site = FakeSite(logits)
    stream = pseudo_set(method, site)
    assert torch.equal(stream.fields["x"], logits[stream.index])
    seen, taken = [], 0
    for batch in epoch({"pseudo": stream}, SimpleNamespace(block=1024), lambda purpose: None):
        n = len(batch["pseudo"]["y"])
        seen.append(
            [
                list(pair)
                for pair in zip(stream.index[taken : taken + n].tolist(), batch["pseudo"]["y"].tolist(), strict=True)
            ]
        )
        assert torch.equal(batch["pseudo"]["x"], logits[stream.index[taken : taken + n]])
        taken += n
    assert seen == out["train_batches_index_label"]
    upload = method.make_upload(site)
    assert upload.weight == out["num_train"]
    assert upload.stats["counts"].tolist() == out["class_counts"]
    assert sum(int(selected.sum()) for _, _, selected in site.reported) == out["num_train"]


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
    weights = torch.tensor(share_weights([u.weight for u in uploads], [True, False, False], mode))
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


def test_labelled_client_connection_over_eleven_epochs() -> None:
    """The released sequence through the hooks; other visits are not connected."""
    for visit, wanted in (
        (Visit(round=3, labelled=True), SEQUENCES["local_11_epochs_plus1_per_epoch"]["outputs"]),
        (Visit(round=3, labelled=False), list(range(1, 12))),
        (Visit(round=2, labelled=True), list(range(1, 12))),
    ):
        method, seen = CBAFed(nn.Linear(1, 1), 2, warmup_rounds=3), []
        method.visit = visit
        method.load_tensors(constant(method, 0.0))
        fit = SimpleNamespace(current_epoch=0)
        method.trainer = fit
        method.on_train_start()
        for fit.current_epoch in range(11):
            method.load_tensors(constant(method, float(method.model.bias.detach()) + 1))
            method.on_train_epoch_end()
            seen.append(float(method.model.bias.detach()))
        assert seen == pytest.approx(wanted, abs=1e-3)


def test_a_client_that_selects_nothing_returns_what_it_received_with_weight_zero() -> None:
    """The average is then the labelled client's; the thresholds follow its labels."""
    made = federation(pl_threshold=1.5, tail_beta=0.0, res_server_alpha=0.0)
    made.run_round(0)
    received = {k: v.clone() for k, v in made.server.items()}
    uploads, _ = made.run_visits(made.visits(1))
    assert [u.weight for u in uploads] == [40.0] + [0.0] * (NUM_CLIENTS - 1)
    for upload in uploads[1:]:
        assert all(torch.equal(v, received[k]) for k, v in upload.tensors.items())
    made.method.load_tensors(made.server)
    made.method.aggregate(uploads)
    assert same(uploads[0].tensors, made.method.state_dict())


def test_a_round_where_nobody_used_anything_keeps_the_model_and_the_thresholds() -> None:
    """No labelled participant and nothing selected."""
    method = CBAFed(Net(), 10, warmup_rounds=0, res_server_alpha=0.0)
    before = {k: v.clone() for k, v in method.tensors("shared", "server").items() if k != "reference"}
    visit = Visit(round=1, labelled=False, size=9)
    method.aggregate([Upload(visit, constant(method, 7.0), 0.0, {"counts": torch.zeros(10)})] * 2)
    assert all(torch.equal(method.state_dict()[k], v) for k, v in before.items())


def test_clients_of_both_kinds_are_refused() -> None:
    """The method knows labelled and unlabelled clients only."""
    data = make_data("all_clients")
    method = make_method("cbafed", warmup_rounds=0)
    with pytest.raises(RunError, match="labelled and unlabelled images; set data"):
        run_rows(Federation(method, data, data.roster(0), plain_fabric(), 1, seed=0))


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

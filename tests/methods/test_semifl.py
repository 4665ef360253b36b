"""SemiFL: fix and mix sets, the mixup loss, clients without a confident image."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.federation.reference import LocalSite
from datamodules.common.errors import ConfigError
from federations import make_federation, make_method
from methods.base import Site, Visit
from methods.semifl import SemiFL


def site_and_method(**args: Any) -> tuple[SemiFL, Site, Tensor]:
    """A method, client 0, and made-up predictions on its images, of which the first 60 % are confident."""
    federation = make_federation("semifl", **args)
    method, data = federation.method, federation.data.client(0)
    assert isinstance(method, SemiFL)
    site = LocalSite(federation.engine, data, Visit(size=data.size), [])
    count, g = len(data.unlabelled), torch.Generator().manual_seed(0)
    probabilities = torch.rand(count, 10, generator=g).softmax(dim=1)
    sure = F.one_hot(probabilities.argmax(dim=1), 10) * 0.9 + 0.01
    return method, site, torch.where(torch.arange(count)[:, None] < 0.6 * count, sure.clamp(max=0.96), probabilities)


def test_fix_and_mix_sets() -> None:
    """As many draws as confident images, with replacement and from everybody, each with its own arg max."""
    method, site, probabilities = site_and_method(threshold=0.9)
    streams = method.pseudo_labelled(site, probabilities)
    fix, mix, everyone = streams["unlabelled"], streams["mix"], site.data.unlabelled
    sure = probabilities.amax(dim=1) >= 0.9
    assert torch.equal(fix.index, everyone[sure])
    assert len(mix) == len(fix) == int(sure.sum())
    assert len(mix.index.unique()) < len(mix)
    assert set(mix.index.tolist()) - set(fix.index.tolist())
    labels = dict(zip(everyone.tolist(), probabilities.argmax(dim=1).tolist(), strict=True))
    assert all(mix.fields["y"].tolist()[i] == labels[k] for i, k in enumerate(mix.index.tolist()))
    assert (dict(fix.views), dict(mix.views)) == ({"weak": "weak", "strong": "strong"}, {"weak": "weak"})
    assert (fix.batch_size, mix.batch_size) == (10, 10)
    method, site, probabilities = site_and_method(threshold=0.9, semifl_mix_pool="confident")
    confident = method.pseudo_labelled(site, probabilities)["mix"]
    assert set(confident.index.tolist()) <= set(fix.index.tolist())


def test_mix_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """lam CE(f(m), y) + (1 - lam) CE(f(m), y') at m = lam w + (1 - lam) w', in double precision; one lam per batch."""
    method = make_method("semifl").double()
    assert isinstance(method, SemiFL)
    g = torch.Generator().manual_seed(0)
    first, second = (
        {"weak": torch.randn(5, 3, 32, 32, generator=g).double(), "y": torch.randint(10, (5,), generator=g)}
        for _ in range(2)
    )
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda self: torch.tensor(0.3))
    logits = method(0.3 * first["weak"] + 0.7 * second["weak"])
    expected = 0.3 * F.cross_entropy(logits, first["y"]) + 0.7 * F.cross_entropy(logits, second["y"])
    torch.testing.assert_close(method.mix_loss(first, second), expected, rtol=1e-6, atol=1e-7)
    strong = torch.randn(5, 3, 32, 32, generator=g).double()
    batch = {"unlabelled": {**first, "strong": strong}, "mix": second}
    whole = expected + F.cross_entropy(method(strong), first["y"])
    torch.testing.assert_close(method.training_step(batch, 0), whole, rtol=1e-6, atol=1e-7)


def test_mixing_with_itself_is_no_mixing() -> None:
    """Whatever lam is."""
    method = make_method("semifl")
    assert isinstance(method, SemiFL)
    g = torch.Generator().manual_seed(0)
    same = {"weak": torch.randn(5, 3, 32, 32, generator=g), "y": torch.randint(10, (5,), generator=g)}
    torch.testing.assert_close(method.mix_loss(same, same), F.cross_entropy(method(same["weak"]), same["y"]))


@torch.no_grad()
def test_lambda_is_not_folded() -> None:
    """Beta(0.75, 0.75) on both sides of one half, seeded by torch's generator."""
    method = make_method("semifl")
    assert isinstance(method, SemiFL)
    one = {"weak": torch.zeros(1, 3, 32, 32), "y": torch.tensor([0])}
    other = {"weak": torch.zeros(1, 3, 32, 32), "y": torch.tensor([1])}
    a, b = (float(F.cross_entropy(method(one["weak"]), torch.tensor([k]))) for k in (0, 1))
    torch.manual_seed(0)
    shares = [(float(method.mix_loss(one, other)) - b) / (a - b) for _ in range(400)]
    assert 0.4 < sum(s > 0.5 for s in shares) / 400 < 0.6
    assert sum(shares) / 400 == pytest.approx(0.5, abs=0.06)


def test_without_mix_it_is_fixmatch() -> None:
    """The fix term alone, with SemiFL's batch size: the same bits."""
    common: dict[str, Any] = {"threshold": 0.0, "local_epochs": 1, "rounds": 1}
    semifl = make_federation("semifl", mix=False, **common)
    fixmatch = make_federation("fixmatch", batch_size=10, empty_client="drop", **common)
    mixed = make_federation("semifl", **common)
    for federation in (semifl, fixmatch, mixed):
        federation.roster.participants = 2
        federation.run()
    assert all(torch.equal(v, fixmatch.server[k]) for k, v in semifl.server.items())
    assert any(not torch.equal(v, mixed.server[k]) for k, v in semifl.server.items())


@pytest.mark.parametrize(("rule", "present"), [("drop", 0), ("keep", 6)])
def test_clients_without_a_confident_image(rule: str, present: int) -> None:
    """They leave the round (and if all do, nothing is averaged and no momentum moves), or return what they received."""
    federation = make_federation("semifl", empty_client=rule, threshold=1.1, server_epochs=0, rounds=1)
    before = {k: v.clone() for k, v in federation.server.items()}
    uploads, *_ = federation.run_visits(federation.visits(0))
    assert len(uploads) == present
    assert all(torch.equal(v, before[k]) for u in uploads for k, v in u.tensors.items())
    row = federation.run_round(0)
    assert row is not None
    assert row["pseudo/selected"] == 0.0
    assert all(torch.equal(v, before[k]) for k, v in federation.server.items())


def test_step_counts() -> None:
    """Epochs times the confident images in batches of 10, the last short one kept."""
    federation = make_federation("semifl", threshold=0.0, local_epochs=2)
    seen: list[tuple[int, int]] = []
    federation.method.on_train_batch_end = lambda *a: seen.append((len(a[1]["unlabelled"]["y"]), len(a[1]["mix"]["y"])))
    federation.run_visits(federation.visits(0)[:1])
    images = federation.data.client(0).size
    assert len(seen) == 2 * -(-images // 10)
    assert all(a == b for a, b in seen)
    assert sum(a for a, _ in seen) == 2 * images


@pytest.mark.parametrize("wrong", [{"pl_time": "every_step"}, {"unsup_norm": "all"}])
def test_arguments_that_would_drop_the_mix_term(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        make_method("semifl", **wrong)
    make_method("semifl", mix=False, **wrong)

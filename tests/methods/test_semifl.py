"""SemiFL: fix and mix sets, the mixup loss, clients without a confident image."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.federation.site import LocalSite
from federations import few_in, make_federation, site_of
from methods.ablations.semifl import AsInFL2
from methods.base import Pass
from methods.semifl import SemiFL


def site_and_method(cls: type[SemiFL] = SemiFL, **args: Any) -> tuple[SemiFL, LocalSite, Tensor]:
    """A method, client 0, and made-up predictions on its images, of which the first 60 % are confident."""
    federation = make_federation(cls, few_in("server"), **args)
    method, site = federation.method, site_of(federation)
    count, g = len(site.data.unlabelled), torch.Generator().manual_seed(0)
    probabilities = torch.rand(count, 10, generator=g).softmax(dim=1)
    sure = F.one_hot(probabilities.argmax(dim=1), 10) * 0.9 + 0.01
    return method, site, torch.where(torch.arange(count)[:, None] < 0.6 * count, sure.clamp(max=0.96), probabilities)


def epochs_of(method: SemiFL, site: LocalSite, probabilities: Tensor, count: int) -> list[list[tuple[int, ...]]]:
    """The first local epochs of a visit: image, label, partner and the partner's label of every pair."""
    streams = method.pseudo_labelled(site, probabilities, *method.select(probabilities))
    for stream in streams.values():
        stream.views = {}
        stream.fields = {**stream.fields, "index": stream.index}
    found = []
    for number in range(count):
        batches = list(site.batches([Pass(streams)] * count, number))
        columns = [torch.cat([b[s][f] for b in batches]) for s in ("unlabelled", "mix") for f in ("index", "y")]
        found.append([tuple(row) for row in torch.stack(columns, dim=1).tolist()])
    return found


@pytest.mark.parametrize("cls", [SemiFL, AsInFL2])
def test_fix_and_mix_sets(cls: type[SemiFL]) -> None:
    """As many draws as confident images, with replacement from the pool, each with its own arg max."""
    method, site, probabilities = site_and_method(cls, threshold=0.9)
    streams = method.pseudo_labelled(site, probabilities, *method.select(probabilities))
    fix, mix, everyone = streams["unlabelled"], streams["mix"], site.data.unlabelled
    sure = probabilities.amax(dim=1) >= 0.9
    assert torch.equal(fix.index, everyone[sure])
    assert len(mix) == len(fix) == int(sure.sum())
    labels = dict(zip(everyone.tolist(), probabilities.argmax(dim=1).tolist(), strict=True))
    for pairs in epochs_of(method, site, probabilities, 3):
        images, partners = [pair[0] for pair in pairs], [pair[2] for pair in pairs]
        assert sorted(images) == sorted(fix.index.tolist())
        assert len(set(partners)) < len(partners) == len(images)
        assert bool(set(partners) - set(images)) == (cls is SemiFL)
        assert set(partners) <= set(everyone.tolist())
        assert all(labels[k] == y and labels[m] == z for k, y, m, z in pairs)


def test_confident_partners_are_drawn_once_per_visit() -> None:
    """The same draws in every epoch, paired anew; other ones in the next visit."""
    method, site, probabilities = site_and_method(AsInFL2, threshold=0.9)
    epochs = [[pair[2] for pair in pairs] for pairs in epochs_of(method, site, probabilities, 4)]
    assert all(sorted(partners) == sorted(epochs[0]) for partners in epochs)
    assert len({tuple(partners) for partners in epochs}) == 4
    site.visit = replace(site.visit, round=1)
    assert sorted(pair[2] for pair in epochs_of(method, site, probabilities, 1)[0]) != sorted(epochs[0])


def test_one_lambda_per_step_of_a_visit() -> None:
    """Every step of every local epoch has its own, in the order of the visit's stream."""
    federation = make_federation("semifl", few_in("server"), threshold=0.0, local_epochs=2)
    method, seen = federation.method, []
    method.on_train_batch_end = lambda *_: seen.append(float(method.lam))
    visit = federation.visits(0)[0]
    federation.run_visits([visit])
    assert len(seen) == 2 * -(-visit.size // 10)
    expected = np.random.default_rng(site_of(federation, visit).generator("order/mix_lambda").initial_seed())
    assert seen == [float(torch.tensor(expected.beta(0.75, 0.75))) for _ in seen]


@pytest.mark.parametrize(("cls", "present"), [(SemiFL, 0), (AsInFL2, 4)])
def test_clients_without_a_confident_image(cls: type[SemiFL], present: int) -> None:
    """They leave the round (and if all do, nothing is averaged and no momentum moves), or return what they received."""
    federation = make_federation(cls, few_in("server"), threshold=1.1, server_epochs=0, rounds=1)
    before = {k: v.clone() for k, v in federation.server.items()}
    uploads, _ = federation.run_visits(federation.visits(0))
    assert len(uploads) == present
    assert all(torch.equal(v, before[k]) for u in uploads for k, v in u.tensors.items())
    assert federation.run_round(0)["pseudo/selected"] == 0.0
    assert all(torch.equal(v, before[k]) for k, v in federation.server.items())

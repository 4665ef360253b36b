"""FixMatch at clients: who labels, what that changes, and the rows that are this method, too."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from federations import contract_federation, few_data, make_federation, make_method, run_rows, site_of, visited
from methods.ablations.client_fixmatch import OnePass
from methods.client_fixmatch import ClientFixMatch
from methods.local_ssl import LocalSSL

SURE, UNSURE = [6.0, 0.0, 0.0], [0.0, 1.0, 0.0]


def labelled_by(who: str, local: list[float], received: list[float]) -> tuple[list[float], bool]:
    """Target of an image with these logits of the two models, and whether it counts."""
    method = make_method("client_fixmatch", pseudo_labels=who)
    method.received_predicts = lambda x: x.softmax(dim=1)
    samples = {"weak": torch.tensor([received])}
    targets, mask = method.targets(samples, torch.tensor([local]).softmax(dim=1))
    return targets[0].tolist(), bool(mask[0])


@pytest.mark.parametrize(("who", "local", "received"), [("local", SURE, UNSURE), ("global", UNSURE, SURE)])
def test_the_labelling_model_alone_decides(who: str, local: list[float], received: list[float]) -> None:
    """Its class, and its confidence; the other model's do not matter."""
    assert labelled_by(who, local, received) == ([1.0, 0.0, 0.0], True)
    assert labelled_by(who, received, local) == ([0.0, 1.0, 0.0], False)


def test_a_visit_is_what_plain_torch_computes() -> None:
    """Losses with labels of the received model, FedProx's pull, momentum and decay, by hand in double precision."""
    run = contract_federation(
        "client_fixmatch", rounds=1, precision="64-true", prox_mu=0.3, lambda_u=0.5, threshold=0.8
    )
    method, batches = run.method, []
    method.on_train_batch_start = lambda batch, _: batches.append(batch)
    received = {name: value.clone() for name, value in run.server.items()}
    upload = visited(run, run.visits(0)[0])[0].upload
    method.load_tensors(received)
    net = method.model
    parameters = list(net.parameters())
    anchors = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        taught = [net(batch["unlabelled"]["weak"]).softmax(dim=1).max(dim=1) for batch in batches]
    buffers: list[Tensor] = []
    for batch, (confidence, labels) in zip(batches, taught, strict=True):
        x, u = batch["labelled"], batch["unlabelled"]
        losses = F.cross_entropy(net(u["strong"]), labels, reduction="none")
        loss = F.cross_entropy(net(x["x"]), x["y"]) + 0.5 * (losses * (confidence >= 0.8)).mean()
        pull = sum(((p - a) ** 2).sum() for p, a in zip(parameters, anchors, strict=True))
        slopes = torch.autograd.grad(loss + 0.3 / 2 * pull, parameters)
        slopes = [g + 1e-4 * p.detach() for g, p in zip(slopes, parameters, strict=True)]
        buffers = [0.9 * b + g for b, g in zip(buffers, slopes, strict=True)] if buffers else slopes
        with torch.no_grad():
            for p, b in zip(parameters, buffers, strict=True):
                p -= method.hparams.lr * b
    assert upload is not None and len(batches) > 3
    assert any(bool((confidence >= 0.8).any()) for confidence, _ in taught)
    for name, value in net.named_parameters():
        torch.testing.assert_close(upload.tensors[f"model.{name}"], value.data, rtol=1e-7, atol=1e-9)


def test_local_labels_are_the_loss_of_feddures_fixmatch() -> None:
    """On one batch, LPL and ``LocalSSL`` at the same threshold have the same loss, term by term."""
    g = torch.Generator().manual_seed(0)
    batch = {
        "labelled": {"x": torch.randn(6, 3, 24, 24, generator=g), "y": torch.arange(6)},
        "unlabelled": {field: torch.randn(9, 3, 24, 24, generator=g) for field in ("weak", "strong")},
    }
    ours = make_method(ClientFixMatch, pseudo_labels="local", threshold=0.104)
    theirs = make_method(LocalSSL, threshold=0.104)
    theirs.lambda_k = 1.0
    loss = ours.training_step(batch, 0)
    torch.testing.assert_close(loss, theirs.training_step(batch, 0), rtol=0.0, atol=1e-6)
    supervised = F.cross_entropy(ours(batch["labelled"]["x"]), batch["labelled"]["y"])
    assert float((loss - supervised).detach()) > 1e-3


def test_without_unlabelled_weight_it_is_fedavg_on_the_same_schedule() -> None:
    """No unlabelled image is loaded, as many steps are taken, and nothing but labels teaches."""
    run = contract_federation("client_fixmatch", rounds=1, lambda_u=0.0)
    full = contract_federation("client_fixmatch", rounds=1)
    work, usual = (one.method.local_work(site_of(one)) for one in (run, full))
    assert [set(part.streams) for part in work] == [{"labelled"}] * len(usual)
    assert [part.steps for part in work] == [part.steps for part in usual]
    row = run_rows(run)[0]
    assert "loss_unlabelled" not in row and "pseudo/selected" not in row


@pytest.mark.parametrize(("batch_size", "steps"), [(8, 2), (200, 1)])
def test_an_epoch_is_one_pass_over_the_labels(batch_size: int, steps: int) -> None:
    """floor(n_l / batch) steps, or one of a client with fewer images; what is drawn has no image twice."""
    options = {"num_labels": 40, "union_mode": "labelled", "pipeline": "randaugment_levels"}
    data = few_data(2, 2, scenario="all_clients", **options)
    run = make_federation(OnePass, data, lambda_u=0, batch_size=batch_size, local_epochs=2)
    work = run.method.local_work(site_of(run))
    images = len(data.client(run.visits(0)[0].client).labelled)
    assert images == 20 and [epoch.steps for epoch in work] == [steps, steps]
    drawn = work[0].streams["labelled"].positions(torch.Generator().manual_seed(0))
    assert sorted(drawn.tolist()) == list(range(images))
    result, _ = visited(run, run.visits(0)[0])
    assert result.steps == 2 * steps

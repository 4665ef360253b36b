"""CBAFed's ablations: warm-up at the clients, labels of plain images, sets rebuilt every epoch or batch by batch."""

import pytest
import torch
import torch.nn.functional as F

from cbafed_runs import after, at_unlabelled_client, federation, pseudo_set, same, small, unlabelled_visit
from datamodules.views.batches import epoch
from federations import make_data, visited
from host_reads import count_host_reads
from methods.ablations.cbafed import BatchByBatch, PlainImages, RebuiltSets, WarmUpAtClients, batch_loss
from methods.cbafed import CBAFed, assign


def test_warmup_at_the_server_is_that_of_the_client_for_one_labelled_client() -> None:
    """Eleven rounds of one epoch end where one visit of eleven epochs with the client's connection ends."""
    ends, plain = {}, {"batch_size": 1000, "res_skip": 5, "labelled_epochs": 11}
    for cls, rounds in ((CBAFed, 11), (WarmUpAtClients, 1)):
        data = small(make_data(zoom=32, flip=0.0), 60)
        made = federation(rounds, data, double=True, cls=cls, warmup_rounds=rounds, **plain)
        for number in range(rounds):
            made.run_round(number)
        ends[cls] = made.server
    unmixed = after(11, double=True, warmup_rounds=11, data=small(make_data(zoom=32, flip=0.0), 60),
                    **{**plain, "res_client_alpha": 0.0})  # fmt: skip
    for name in [n for n in ends[CBAFed] if n.startswith("model.")]:
        torch.testing.assert_close(ends[CBAFed][name], ends[WarmUpAtClients][name], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(ends[CBAFed]["model.head.weight"], unmixed["model.head.weight"])


def test_clean_labels_come_from_the_test_view_and_fresh_views_are_trained_on() -> None:
    """What is stored are labels only."""
    made = federation(cls=PlainImages, tail_beta=0.0, pl_threshold=0.0)
    made.run_round(0)
    stream = pseudo_set(made.method, at_unlabelled_client(made))
    assert dict(stream.views) == {"x": "weak"} and set(stream.fields) == {"y"}
    made.method.eval()
    with torch.no_grad():
        clean = made.method.predict(made.data.take("test", stream.index)).argmax(dim=1)
    assert torch.equal(clean, stream.fields["y"])


def test_one_epoch_needs_no_second_set() -> None:
    """rebuilt with one local epoch is fixed, bit for bit; with two it is not."""
    assert same(after(2, cls=RebuiltSets), after(2))
    assert not same(after(2, cls=RebuiltSets, local_epochs=2), after(2, local_epochs=2))


def test_strategies_take_the_same_number_of_steps() -> None:
    """Threshold 0 keeps everything: 5 epochs of 3 steps each, however the labels are made."""
    for strategy, labelled in ((CBAFed, 1), (RebuiltSets, 5), (BatchByBatch, 5)):
        made = federation(cls=strategy, local_epochs=5, pl_threshold=0.0, tail_beta=0.0)
        made.run_round(0)
        outcome = visited(made, unlabelled_visit(made))[0]
        assert outcome.sums["loss"][1] == 15
        assert outcome.upload.weight == pytest.approx(40.0)
        assert outcome.sums["pseudo/selected"][1] == 40 * labelled


def test_batch_by_batch_labels_with_the_model_being_trained() -> None:
    """The loss of a step is that of the labels that the model in training mode gives the very batch."""
    made = federation(cls=BatchByBatch, pl_threshold=0.0, tail_beta=0.0)
    made.run_round(0)
    site = at_unlabelled_client(made)
    (work,) = made.method.local_work(site)
    made.method.train()
    batch = next(epoch(work.streams, made.data, site.generator))
    loss = made.method.training_step(batch, 0)
    with torch.no_grad():
        logits = made.method(batch["unlabelled"]["x"])
    torch.testing.assert_close(loss.detach(), F.cross_entropy(logits, logits.argmax(dim=1)))


def test_a_step_on_a_batch_reads_nothing_back_and_counts_what_it_kept() -> None:
    """The counts of an epoch's batches add up to the images kept, over the number of epochs."""
    made = federation(cls=BatchByBatch, local_epochs=2, cba_tau=0.12)
    made.run_round(0)
    site, method = at_unlabelled_client(made), made.method
    first, _ = method.local_work(site)
    assert float(method.counts.sum()) == 0
    method.train()
    kept = torch.zeros(10)
    for batch in epoch(first.streams, made.data, site.generator):
        with torch.no_grad():
            p = method.predict(batch["unlabelled"]["x"])
        labels, confident, rescued = assign(p, method.thresholds, method.tail)
        kept += torch.bincount(labels[confident | rescued], minlength=10)
        with count_host_reads() as reads:
            method.training_step(batch, 0)
        assert not reads
    assert 0 < float(kept.sum()) < 40
    torch.testing.assert_close(method.counts, kept / 2)


def test_rebuilt_sets_are_labelled_when_their_turn_comes() -> None:
    """Each epoch's labels are those of the model of that moment; nothing is labelled before the first epoch."""
    made = federation(cls=RebuiltSets, local_epochs=3, pl_threshold=0.0, tail_beta=0.0)
    made.run_round(0)
    site, method = at_unlabelled_client(made), made.method
    work = method.local_work(site)
    assert len(work) == 3 and all(callable(part) for part in work)
    assert float(method.counts.sum()) == 0
    orders = []
    for part in work:
        with torch.no_grad():
            for value in method.model.parameters():
                value.add_(0.1 * torch.randn(value.shape))
        stream = part().streams["pseudo"]
        orders.append(stream.index.tolist())
        with torch.no_grad():
            labels = method.eval().predict(stream.fields["x"]).argmax(dim=1)
        assert torch.equal(labels, stream.fields["y"])
    assert orders[0] != orders[1] != orders[2]


def test_batch_loss_is_the_mean_over_the_kept() -> None:
    """With a threshold of 0 it is self-training; with one of 1 it is zero, and so is the gradient."""
    torch.manual_seed(0)
    logits, tail = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.zeros(4, dtype=torch.bool)
    loss, labels, kept = batch_loss(logits, torch.zeros(4), tail)
    torch.testing.assert_close(loss, F.cross_entropy(logits, logits.argmax(dim=1)))
    assert kept.all() and torch.equal(labels, logits.argmax(dim=1))
    half = float(logits.detach().softmax(dim=1).max(dim=1).values.median())
    loss, labels, kept = batch_loss(logits, torch.full((4,), half), tail)
    assert 0 < kept.sum() < 6
    torch.testing.assert_close(loss, F.cross_entropy(logits[kept], labels[kept]))
    loss, _, kept = batch_loss(logits, torch.ones(4), tail)
    loss.backward()
    assert float(loss.detach()) == 0 and not kept.any() and not logits.grad.any()

"""CBAFed's ablations: warm-up at the clients, sets rebuilt every epoch, losses batch by batch."""

import torch
import torch.nn.functional as F

from cbafed_runs import after, at_unlabelled_client, federation, small
from federations import make_data
from methods.ablations.cbafed import RebuiltSets, WarmUpAtClients, batch_loss
from methods.cbafed import CBAFed


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

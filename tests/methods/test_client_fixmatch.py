"""FixMatch at clients: a visit against plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from federations import contract_federation, visited


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

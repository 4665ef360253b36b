"""FedDB: DMA against the released server, and the local steps against plain torch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from federations import contract_federation, site_of, visited
from golden_files import load
from methods.feddb import model_weights
from methods.parts.tensors import app_u

DMA = load("feddb/dma")


@pytest.mark.parametrize("case", DMA["cases"], ids=lambda c: c["name"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_released_weights(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Weights as released and as written."""
    averages, out = torch.tensor(case["inputs"]["app_u"], dtype=dtype), case["outputs"]
    weights = model_weights(averages)
    tolerance = {"rtol": 0.0, "atol": DMA["tolerance"], "check_dtype": False}
    torch.testing.assert_close(weights, torch.tensor(out["weights_as_coded"]), **tolerance)
    if (written := out["weights_paper_variant_reference"]) is not None:
        torch.testing.assert_close(model_weights(averages, as_written=True), torch.tensor(written), **tolerance)


@pytest.mark.parametrize("as_written", [False, True])
def test_degenerate_clients(as_written: bool) -> None:
    """One client weighs 1; equal or uniform APP-Us (a root of zero as written) leave equal weights, never NaN."""
    assert model_weights(torch.tensor([[0.7, 0.3]]), as_written).tolist() == [1.0]
    for averages in (torch.full((4, 5), 0.2), torch.tensor([[0.6, 0.4]]).expand(3, 2), torch.eye(4)):
        weights = model_weights(averages, as_written)
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / len(weights)))


def test_local_training_is_what_plain_torch_computes() -> None:
    """Losses, clipping, Nesterov momentum, decay and the APP-U of one visit, recomputed by hand in float64."""
    run = contract_federation("feddb", precision="64-true", threshold=0.7, clip_norm=0.5, local_epochs=5)
    batches: list[Any] = []
    run.method.on_train_batch_start = lambda batch, _: batches.append(batch)
    visit = run.visits(0)[0]
    start: dict[str, Tensor] = {k: v.clone() for k, v in run.server.items()}
    upload = visited(run, visit)[0].upload
    method = run.method
    method.load_tensors(start)
    method.eval()
    parameters = list(method.model.parameters())
    buffers = [torch.zeros_like(p) for p in parameters]
    site = site_of(run, visit)
    with torch.no_grad():
        average = app_u(torch.cat([method.predict(x) for x in site.views("weak", site.data.unlabelled, size=250)]))
    method.train()
    for number, batch in enumerate(batches):
        with torch.no_grad():
            average = 0.5 * average + 0.5 * method.model(batch["app_u"]["weak"]).softmax(dim=1).mean(dim=0)
        loss = F.cross_entropy(method.model(batch["labelled"]["x"]), batch["labelled"]["y"])
        loss = loss + F.cross_entropy(method.model(batch["unlabelled"]["strong"]), batch["unlabelled"]["y"])
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        with torch.no_grad():
            for p, g, b in zip(parameters, gradients, buffers, strict=True):
                g = g * min(1.0, 0.5 / (float(norm) + 1e-6)) + 5e-4 * p
                b.copy_(g if number == 0 else 0.9 * b + g)
                p -= 0.01 * (g + 0.9 * b)
    assert upload is not None and len(batches) == 5
    torch.testing.assert_close(upload.stats["app_u"], average.to(upload.stats["app_u"].dtype), rtol=1e-5, atol=1e-6)
    for name, value in method.model.named_parameters():
        torch.testing.assert_close(upload.tensors[f"model.{name}"], value.data, rtol=1e-9, atol=1e-10)

"""ResNet-9 against the released network."""

import math

import pytest
import torch
import torch.nn.functional as F

from golden_files import load
from methods.models import build


def test_resnet9_matches_the_released_network():
    data = load("feddure/resnet9")
    out = data["outputs"]
    model = build("resnet9", 10).double()
    state = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    assert [list(v.shape) for v in state.values()] == [shape for _, shape in data["inputs"]["state_dict_order"]]
    with torch.no_grad():
        for j, (name, v) in enumerate(state.items()):
            i = torch.arange(v.numel(), dtype=torch.float64)
            if name.endswith("running_mean"):
                value = 0.05 * torch.sin(i + j)
            elif name.endswith("running_var"):
                value = 1 + 0.5 * torch.sin(i + j) ** 2
            elif v.ndim > 1:
                value = torch.sin(0.7 * i + j) * math.sqrt(2 / v[0].numel())
            elif name.endswith("bias"):
                value = 0.1 * torch.cos(i + j)
            else:
                value = 1 + 0.1 * torch.sin(i + j)
            v.copy_(value.view(v.shape))
    x = torch.sin(0.01 * torch.arange(2 * 3 * 32 * 32, dtype=torch.float64)).view(2, 3, 32, 32)

    def check(tensor, name):
        torch.testing.assert_close(tensor, torch.tensor(out[name], dtype=torch.float64), rtol=1e-8, atol=1e-10)

    model.eval()
    assert list(model.features(x).shape) == out["feature_dim"]
    check(model(x), "logits_eval")
    model.train()
    logits = model(x)
    check(logits, "logits_train")
    check(model.prep[1].running_mean[:4], "prep_running_mean_after_one_train_forward")
    loss = F.cross_entropy(logits, torch.tensor([1, 7]))
    assert loss.item() == pytest.approx(out["loss_train_labels_1_7"], rel=1e-9)
    loss.backward()
    check(torch.stack([p.grad.norm() for p in model.parameters()]), "grad_norms_in_parameter_order")

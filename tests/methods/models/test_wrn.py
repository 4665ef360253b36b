import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from golden_files import load
from methods.models import build
from methods.models.norm import reestimate

WRN_CASES = {case["id"]: case for case in load("fl2/wrn")["cases"]}


@pytest.mark.parametrize("case", WRN_CASES.values(), ids=WRN_CASES)
def test_wide_resnet_layout(case):
    spec, out = case["inputs"], case["outputs"]
    channels, side, _ = spec["img_shape"]
    with torch.device("meta"):
        model = build(f"wrn28_{spec['widen']}", spec["num_classes"], channels, side, norm="batch")
    assert [list(p.shape) for p in model.parameters()] == list(out["shapes"].values())
    assert len(list(model.buffers())) == out["buffers_when_track_false"]


def test_wide_resnet_initialisation():
    torch.manual_seed(0)
    model = build("wrn28_2", 10)
    for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2
        assert float(conv.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.12)
    assert 0.9 < float(model.head.weight.detach().abs().max()) * math.sqrt(128) <= 1
    assert not model.head.bias.any()


def test_wide_resnet_matches_the_released_network():
    out = WRN_CASES["wrn28x2_10"]["outputs"]
    model = build("wrn28_2", 10).double()
    with torch.no_grad():
        for t, (name, p) in enumerate(model.named_parameters()):
            i = torch.arange(p.numel(), dtype=torch.float64)
            if p.ndim == 4:
                scale = 2 / math.sqrt(p.shape[0] * p.shape[2] * p.shape[3])
                value = scale * torch.sin(0.37 * i + 2 * torch.sin(0.05 * i) + t)
            elif name == "head.weight":
                value = 0.3 * torch.sin(0.37 * i + t)
            elif name == "head.bias":
                value = 0.1 * torch.cos(i + t)
            elif name.endswith("weight"):
                value = 1 + 0.2 * torch.sin(0.9 * i + t)
            else:
                value = 0.1 * torch.cos(0.7 * i + t)
            p.copy_(value.view(p.shape))
    x = torch.sin(0.013 * torch.arange(2 * 3 * 32 * 32, dtype=torch.float64) ** 1.1)
    x = x.view(2, 3, 32, 32)
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    logits = model(x)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(logits, torch.tensor(out["train_mode_logits"], dtype=torch.float64), **close)
    features = torch.tensor(out["train_mode_features_first8"], dtype=torch.float64)
    torch.testing.assert_close(model.features(x)[:, :8], features, **close)
    loss = F.cross_entropy(logits, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(out["ce_loss_targets_0_1"], rel=1e-6)
    loss.backward()
    norms = dict(zip(out["shapes"], (p.grad.norm().item() for p in model.parameters()), strict=True))
    for name, norm in out["grad_norms"].items():
        assert norms[name] == pytest.approx(norm, rel=1e-6), name
    assert all(torch.equal(buffers[k], v) for k, v in model.named_buffers())

    reestimate(model, [x, 0.5 * x + 0.1])
    expected = out["eval_logits_after_cumulative_stats_over_two_batches (x, 0.5x+0.1)"]
    torch.testing.assert_close(model.eval()(x), torch.tensor(expected, dtype=torch.float64), **close)
    torch.testing.assert_close(model.train()(x), logits, rtol=0, atol=0)


def test_batch_normalised_wide_resnet_matches_the_released_network():
    data = load("feddb/wrn28x2")
    out, tolerance = data["outputs"], data["tolerance"]
    model = build("wrn28_2", 10, norm="batch")
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 4:
                o, i, h, w = (
                    torch.arange(n, dtype=torch.float64).view([-1 if d == k else 1 for d in range(4)])
                    for k, n in enumerate(p.shape)
                )
                phase = 1 + 0.37 * o * (1 + 0.013 * i) + 0.71 * i + 0.5 * h + 0.23 * w
                p.copy_(torch.sin(phase) * math.sqrt(2 / (p.shape[0] * p.shape[2] * p.shape[3])))
        o, i = torch.arange(10.0)[:, None], torch.arange(128.0)
        model.head.weight.copy_(0.3 * torch.sin(0.3 + 0.9 * o + 0.17 * i))
    b, c, y, x = torch.meshgrid(*(torch.arange(float(n)) for n in (4, 3, 32, 32)), indexing="ij")
    images = torch.sin(0.7 * b + 1.3 * c + 0.21 * y * (1 + 0.1 * b) + 0.13 * x)

    def check(logits, name):
        torch.testing.assert_close(logits, torch.tensor(out[name]), rtol=tolerance, atol=tolerance)

    with torch.no_grad():
        check(model(images), "logits_train_batch4")
        model.eval()
        check(model(images), "logits_eval_batch4")
        check(model(images[:1]), "logits_eval_single_first")
        check(torch.cat([model(images[:2]), model(images[2:])]), "logits_eval_two_batches_of_2")


def test_group_normalised_wide_resnet_treats_images_separately():
    torch.manual_seed(0)
    model = build("wrn28_2", 10, norm="group").double()
    groups = {m.num_channels: m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)}
    assert groups == {16: 16, 32: 32, 64: 32, 128: 32}
    x = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), torch.cat([model(image[None]) for image in x]))
    few = build("wrn28_2", 10, norm="group", groups=8)
    assert {m.num_groups for m in few.modules() if isinstance(m, nn.GroupNorm)} == {8}

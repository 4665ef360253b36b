import pytest
import torch
import torch.nn.functional as F
from torch import nn

from datamodules.common.errors import RunError
from golden_files import load
from methods.models.norm import StaticBatchNorm2d, reestimate, static_norms
from methods.parts.engine_state import state_of

STATIC_CASES = load("fl2/sbn_stats")["cases"]


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 1, bias=False)
        self.bn1 = StaticBatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 2, 1, bias=False)
        self.bn2 = StaticBatchNorm2d(2)
        self.classifier = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.classifier(x.mean((2, 3)))


@pytest.mark.parametrize("case", STATIC_CASES, ids=[case["id"] for case in STATIC_CASES])
def test_static_statistics_match_the_released_code(case):
    def tensor(values):
        return torch.tensor(values, dtype=torch.float64)

    given, out = case["inputs"], case["outputs"]
    model = TwoLayers().double()
    buffers = dict(model.named_buffers())
    model.load_state_dict({k: tensor(v) for k, v in given["params"].items()} | buffers)
    if "stale" in case["id"]:
        reestimate(model, [torch.rand(7, 2, 2, 2, dtype=torch.float64)])
    batches = list(tensor(given["x_labelled"]).split(given["labelled_batch_size"]))
    if given["sbn_mode"] == 2:
        pool = tensor(given["x_unlabelled_pool_in_storage_order"])
        batches += pool.split(given["unlabelled_batch_size"])
    reestimate(model, batches)
    for name, value in out["buffers"].items():
        torch.testing.assert_close(model.state_dict()[name].double(), tensor(value), rtol=1e-7, atol=1e-9)
    probe = model.eval()(tensor(given["x_probe"]))
    torch.testing.assert_close(probe, tensor(out["eval_logits_on_probe"]), rtol=1e-7, atol=1e-9)


def test_static_statistics_do_not_depend_on_who_measures_a_batch():
    """Measured out of turn, made from positions: the same bits."""
    torch.manual_seed(0)
    images = torch.randn(10, 2, 4, 4)
    apart, alone = TwoLayers(), TwoLayers()
    apart.load_state_dict(alone.state_dict())

    def backwards(work, items):
        return [work(item) for item in list(items)[::-1]][::-1]

    positions = torch.arange(10).split(4)
    reestimate(apart, positions, view=images.__getitem__, spread=backwards)
    reestimate(alone, [images[p] for p in positions])
    for name, value in alone.state_dict().items():
        assert torch.equal(value, apart.state_dict()[name])


def test_static_norm_evaluates_with_the_batch_until_it_has_statistics():
    torch.manual_seed(0)
    layer, x = StaticBatchNorm2d(3).double(), torch.randn(4, 3, 5, 5, dtype=torch.float64) + 2
    normalised = layer(x)
    assert torch.equal(layer.eval()(x), normalised)
    reestimate(layer, [x])
    assert not layer.training
    shift = x + 7
    torch.testing.assert_close(
        layer(shift) - layer(x), 7 / (x.var((0, 2, 3)) + 1e-5).sqrt()[None, :, None, None] + 0 * x
    )
    assert torch.equal(layer.train()(x), normalised)

    other = StaticBatchNorm2d(3).double()
    with torch.no_grad():
        for name, value in layer.state_dict().items():
            other.state_dict()[name].copy_(value)
    other.note(layer.num_batches_tracked)
    assert torch.equal(other.eval()(shift), layer.eval()(shift))


def test_static_layers_of_a_compiled_part_have_the_names_of_the_state():
    """A compiled part holds the original under ``_orig_mod``, and the state leaves that out."""
    part = nn.Module()
    part._orig_mod = TwoLayers()
    whole = nn.Sequential(part)
    names = [name for name, _ in static_norms(whole)]
    assert names == ["0.bn1.num_batches_tracked", "0.bn2.num_batches_tracked"] and {*names} <= state_of(whole).keys()


def test_reestimate_runs_the_rest_in_evaluation_mode_and_restores_the_mode():
    model = nn.Sequential(nn.Dropout(0.9), StaticBatchNorm2d(1), nn.BatchNorm2d(1)).double()
    x = torch.rand(4, 1, 4, 4, dtype=torch.float64)
    reestimate(model, [x])
    torch.testing.assert_close(model[1].running_mean, x.mean().view(1))
    assert not model[2].num_batches_tracked
    assert all(m.training for m in model.modules())
    model[1].running_mean.fill_(torch.inf)
    reestimate(model, [x])
    torch.testing.assert_close(model[1].running_mean, x.mean().view(1))
    with pytest.raises(RunError, match="no batch"):
        reestimate(model, [])
    assert not model[1].measures
    reestimate(nn.Conv2d(1, 1, 1), [])

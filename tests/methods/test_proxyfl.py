"""ProxyFL: its parts and visits against the released code, closed forms, and what is left without its terms."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from allclients_visits import Toy, arguments, own_name, precise, visits
from datamodules.common.errors import ConfigError
from federations import contract_federation, fewest_for, make_method, site_of, visited
from golden_files import load
from methods.ablations.proxyfl import AsPrinted, ReleasedWeights
from methods.base import Upload, Visit
from methods.parts.aggregation import weighted_mean
from methods.proxyfl import ProxyFL, class_sets, classifier, distances, tuned_proxies

ICPL, SERVER = load("allclients/proxyfl_icpl"), load("allclients/proxyfl_server")
PRIOR, UPDATE = load("allclients/proxyfl_prior"), load("allclients/proxyfl_update")


def toy(**args: Any) -> ProxyFL:
    """ProxyFL around the toy network, in double precision."""
    return ProxyFL(Toy(), num_classes=3, **args).double()


# --- the released code


@pytest.mark.parametrize("case", ICPL["cases"])
def test_released_icpl(case: dict[str, Any]) -> None:
    """Sets, loss, and gradients at features, proxies and both heads, through the method itself."""
    given, out = case["inputs"], case["outputs"]
    labelled, close = given["n_labelled"], {"rtol": 0.0, "atol": ICPL["tolerance"]}
    logits = precise(given["global_logits_labelled_then_weak"])
    p_x, p = logits[:labelled].softmax(dim=1), logits[labelled:].softmax(dim=1)
    decided = p.amax(dim=1) >= given["threshold"]
    every, known = torch.cat([p_x, p, p]), torch.tensor(out["confident"])
    assert class_sets(every, known, precise(given["prior"])).tolist() == out["category_sets"]

    method = toy(threshold=given["threshold"])
    heads = {f"feat_proj.{name}": value for name, value in given["feat_proj"].items()}
    heads |= {"proxy_proj.weight": given["proxy_proj_weight"], "model.head.weight": given["classifier_weight"]}
    method.load_tensors({name: precise(value) for name, value in (heads | {"prior": given["prior"]}).items()})
    method.received_predicts = lambda x: p_x
    features = precise(given["features"]).requires_grad_()
    batch = {"labelled": {"x": p_x}, "unlabelled": {}}
    loss = method.proxy_learning(batch, {"features": features}, p, decided)
    assert float(loss.detach()) == pytest.approx(out["loss"], abs=ICPL["tolerance"])
    loss.backward()
    for tensor, name in (
        (features, "grad_features"),
        (method.model.head.weight, "grad_classifier_weight"),
        (method.proxy_proj.weight, "grad_proxy_proj"),
        (method.feat_proj.weight, "grad_feat_proj"),
    ):
        torch.testing.assert_close(tensor.grad, precise(out[name]), **close)


@pytest.mark.parametrize("case", UPDATE["cases"])
def test_released_visits(case: dict[str, Any]) -> None:
    """Weights, buffers, momentum and class counts after two visits that share an optimiser."""
    method = toy(**arguments(case))
    method.prior.copy_(precise(case["inputs"]["prior"]))
    for out in visits(method, case, UPDATE["tolerance"]):
        assert method.counts.tolist() == out["local_class_counts"]
        method.counts.zero_()  # as an engine does between visits


@pytest.mark.parametrize("case", SERVER["cases"])
def test_released_server(case: dict[str, Any]) -> None:
    """Mean, margin and tuned proxies; the bias keeps its mean."""
    given, out = case["inputs"], case["outputs"]
    method = toy(gpt_epochs=given["epochs"], gpt_lr=given["lr"])
    names = {own_name(name): name for name in out["plain_average"]}
    states = [filled(method, list(names), 3 * m, given["scale"]) for m in range(len(given["weights"]))]
    stats = {"counts": torch.zeros(3, dtype=torch.float64)}
    uploads = [Upload(Visit(), s, w, stats) for s, w in zip(states, given["weights"], strict=True)]
    mean = weighted_mean(states, given["weights"])
    close = {"rtol": 0.0, "atol": SERVER["tolerance"]}
    for ours, theirs in names.items():
        if "num_batches" not in ours:
            torch.testing.assert_close(mean[ours], precise(out["plain_average"][theirs]), **close)
    assert method.margin(mean["model.head.weight"]) == pytest.approx(out["margin"], abs=1e-9)
    in_order = lambda rows, proxies: tuned_proxies(  # noqa: E731
        rows, proxies, [torch.arange(9)] * given["epochs"], given["lr"], method.margin(proxies)
    )
    method.tuned = in_order
    method.aggregate(uploads)
    torch.testing.assert_close(method.model.head.weight.data, precise(out["tuned_classifier_weight"]), **close)
    torch.testing.assert_close(method.model.head.bias.data, precise(out["classifier_bias"]), **close)


def filled(method: ProxyFL, names: list[str], k: int, scale: float) -> dict[str, Tensor]:
    """A state of the released network: sines, entry by entry."""
    state, shapes = {}, method.registered()
    for name in names:
        shape = shapes[name].shape
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(95 + k // 3)
            continue
        s = torch.sin(0.1 * (torch.arange(shape.numel(), dtype=torch.float64) + 1) + k).reshape(shape)
        kinds = {"bn.weight": 1 + 0.1 * s, "running_mean": 0.05 * s, "running_var": 1 + 0.5 * s**2}
        state[name] = next((value for kind, value in kinds.items() if name.endswith(kind)), scale * s)
        k += 1
    return state


@pytest.mark.parametrize("case", PRIOR["cases"])
def test_released_prior(case: dict[str, Any]) -> None:
    """Round by round, from the uniform one."""
    method, expected = toy(), case["outputs"]["prior_after_each_round"]
    assert method.prior.tolist() == pytest.approx(expected[0])
    method.prior.copy_(precise(expected[0]))
    for counts, prior in zip(case["inputs"]["counts_per_round_and_client"], expected[1:], strict=True):
        method.prior.copy_(method.next_prior(precise(counts)))
        assert method.prior.tolist() == pytest.approx(prior, abs=PRIOR["tolerance"])


# --- closed forms


def test_the_margin_is_the_widest_gap_to_a_nearest_proxy() -> None:
    """Three points on a line; never above 100."""
    proxies = torch.tensor([[0.0], [1.0], [4.0]])
    assert toy().margin(proxies) == 3.0
    assert toy().margin(1000 * proxies) == 100.0
    assert torch.equal(distances(proxies, proxies), (proxies - proxies.T).abs())


# --- the federation


def test_classes_are_counted_in_the_last_epoch_alone() -> None:
    """As many labels as one epoch's steps draw, and as many images as it selects."""
    sizes = {"batch_size": 4, "unlabelled_bs": 8, "local_epochs": 3}
    run = contract_federation("proxyfl", fewest_for("proxyfl"), rounds=1, **sizes)
    chosen: list[Tensor] = []
    run.method.report_pseudo_labels = lambda index, labels, mask: chosen.append(mask)
    upload = visited(run, run.visits(0)[0])[0].upload
    steps = len(chosen) // 3
    assert upload is not None and steps > 1
    last = int(torch.stack(chosen[-steps:]).sum())
    assert float(upload.stats["counts"].sum()) == steps * run.method.hparams.batch_size + last


def test_a_round_without_counts_keeps_the_prior() -> None:
    """Nobody met anything."""
    method = make_method("proxyfl")
    assert torch.equal(method.next_prior(torch.zeros(3, 10)), method.prior)


def test_a_network_that_ends_in_no_linear_layer_is_refused() -> None:
    """Its proxies would be nowhere."""
    model = Toy()
    model.head = nn.Identity()
    with pytest.raises(ConfigError, match="no linear layer, whose rows are the proxies"):
        ProxyFL(model, num_classes=3)
    assert classifier(Toy()).out_features == 3


# --- as printed


def test_as_printed_icpl_on_two_images() -> None:
    """A decided and an undecided image and a label of a third class, by hand."""
    method = AsPrinted(Toy(), num_classes=3).double()
    z = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = precise([[1.0, 0.0, 0.0], [3.0, 1.0, -2.0]])
    p = precise([[0.96, 0.02, 0.02], [0.5, 0.4, 0.1]])  # of the second, classes 0 and 1 are above a third
    batch = {"labelled": {"x": z[:1], "y": torch.tensor([2])}, "unlabelled": {}}
    loss = method.proxy_learning(batch, {"features": z, "weak": logits}, p, torch.tensor([True, False]))
    w = method.model.head.weight
    drawn = [z[1] @ w[0], z[2] @ (0.75 * w[0] + 0.25 * w[1])]
    pushed = [z[1] @ z[0], z[2] @ z[0]]  # the two images share class 0
    by_hand = sum(torch.logaddexp(pos, neg) - pos for pos, neg in zip(drawn, pushed, strict=True))
    torch.testing.assert_close(loss, by_hand)


def test_released_weights_count_a_labelled_image_2000_times() -> None:
    """2000 n_l + n."""
    run = contract_federation(ReleasedWeights)
    site = site_of(run)
    assert run.method.make_upload(site).weight == 2000 * len(site.data.labelled) + len(site.data.unlabelled)

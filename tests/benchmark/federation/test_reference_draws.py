"""What a visit of the reference engine draws, tells and is told: random numbers, tallies, hidden labels."""

from dataclasses import replace

import pytest
import torch

from benchmark.config import Run, RunConfig
from benchmark.federation.assembly import sees_hidden_labels
from benchmark.federation.site import EVAL_BLOCK, measured
from benchmark.registry import ClassSpec
from datamodules.common.errors import RunError
from datamodules.partition.sites import true_labels
from federations import Unaugmented, few_federation, run_rows, site_of, visited
from methods.base import Pass, Visit

ROUNDS = 2


class Draws(Unaugmented):
    """Draws from torch's own generator, as dropout does, and from the method's, as a step may."""

    def on_train_start(self):
        self.log("start", torch.rand((), generator=self.generator))

    def training_step(self, batch, batch_idx):
        self.log("noise", torch.rand(()))
        self.log("step", torch.rand((), generator=self.generator))
        return super().training_step(batch, batch_idx)


def test_what_a_step_draws_belongs_to_the_visit():
    """It repeats, differs between rounds, clients and repeats, and leaves torch's global generator alone."""
    run = few_federation(Draws, clients=2)
    first, state = run.visits(0)[0], torch.random.get_rng_state()

    def drawn(visit):
        sums = visited(run, visit)[0].sums
        return tuple(float(sums[name][0]) for name in ("noise", "start", "step"))

    others = [replace(first, round=1), replace(first, client=1), replace(first, repeat=1)]
    assert len({number for v in (first, *others) for number in drawn(v)}) == 12
    assert drawn(first) == drawn(first)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_passes_are_made_when_their_turn_comes():
    """A function gives an epoch of its own, from the model of that moment; the others are made before."""
    seen = []

    class Rebuilds(Unaugmented):
        def local_work(self, client):
            def rebuilt():
                seen.append(self.trainer.global_step)
                return Pass(self.streams(client.data), steps=1)

            return [*super().local_work(client), rebuilt, rebuilt]

        def on_train_batch_start(self, batch, batch_idx):
            seen.append((self.current_epoch, batch_idx))

    run = few_federation(Rebuilds)
    visited(run, run.visits(0)[0])
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3), 4, (1, 0), 5, (2, 0)]


def test_streams_of_a_site():
    run = few_federation(clients=2)
    site = site_of(run, Visit(round=3, client=0))
    index = site.data.labelled.repeat(5)[: 2 * EVAL_BLOCK + 5]
    blocks = list(site.views("test", index))
    assert [len(b) for b in blocks] == [EVAL_BLOCK, EVAL_BLOCK, 5]
    assert torch.equal(torch.cat(blocks), run.data.take("test", index))
    weak = [torch.cat(list(site.views("weak", index, purpose))) for purpose in ("a", "a", "b")]
    assert torch.equal(weak[0], weak[1])
    assert not torch.equal(weak[0], weak[2])


def test_the_server_meets_other_numbers_before_the_first_round_than_in_it():
    """Pre-training and the first server step do not repeat each other's shuffles."""

    class Listens(Unaugmented):
        drawn = []

        def server_step(self, server):
            own = float(torch.rand(1, generator=self.generator))
            self.drawn.append((float(torch.rand(1, generator=server.generator("order"))), own))

    run = few_federation(Listens, clients=6)
    run.run()
    assert [len(set(numbers)) for numbers in zip(*run.method.drawn, strict=True)] == [1 + ROUNDS] * 2


def tallies(run, index, labels, selected):
    site = site_of(run)
    site.report_pseudo_labels(index, labels, selected)
    return {name: (total / weight).tolist() for name, (total, weight) in measured(site).taken().items()}


def test_pseudo_labels_are_judged_by_the_hidden_labels():
    """Of 8 images 6 are selected and 4 of them are right; shares are of all 8."""
    run = few_federation(clients=2, labelled=1)
    index = run.data.client(1).unlabelled[:8]
    labels = true_labels(run.data)[index].clone()
    selected = torch.tensor([True] * 6 + [False] * 2)
    labels[[0, 1, 6]] = (labels[[0, 1, 6]] + 1) % 10
    shares = tallies(run, index, labels, selected)
    assert (shares["pseudo/selected"], shares["pseudo/correct"]) == (0.75, 0.5)
    assert sum(shares["pseudo/selected_by_class"]) == pytest.approx(0.75)
    assert sum(shares["pseudo/correct_by_class"]) == pytest.approx(0.5)
    one_of_eight = torch.bincount(labels[selected], minlength=10) / 8
    assert shares["pseudo/selected_by_class"] == pytest.approx(one_of_eight.tolist())
    assert tallies(run, index[:0], labels[:0], selected[:0]) == {}
    assert tallies(run, index, labels, torch.zeros(8, dtype=torch.bool))["pseudo/correct"] == 0


def test_hidden_labels_are_for_declared_oracles_only():
    run = few_federation(clients=2, labelled=1)
    site = site_of(run, Visit(client=1))
    index = site.data.unlabelled[:4]
    with pytest.raises(RunError, match="uses_oracle"):
        site.oracle(index, true_labels(run.data)[index])
    run.method.uses_oracle = True
    assert site.oracle(index, true_labels(run.data)[index]).all()


class Declares(Unaugmented):
    """Says in its constructor whether it sees hidden labels."""

    def __init__(self, model, uses=True, **base):
        super().__init__(model, **base)
        self.uses_oracle = uses


@pytest.mark.parametrize("uses", [False, True])
def test_what_a_run_sees_is_what_its_method_says_as_it_stands(uses):
    """A class that says nothing may have instances that do."""
    config = RunConfig(
        method=ClassSpec(f"{__name__}.Declares", {"uses": uses}),
        data=ClassSpec("few_digits.FewDigits", {"num_clients": 2}),
        model="small_cnn",
        rounds=1,
    )
    assert sees_hidden_labels(Run.of(config)) == uses


def test_tallies_are_means_over_steps_and_clients():
    """The row's ``loss`` is the mean over all batches of all clients; ``batch_size`` weighs."""

    class Logs(Unaugmented):
        def training_step(self, batch, batch_idx):
            self.log("plain", float(batch_idx))
            self.log("weighted", torch.tensor(float(len(batch["labelled"]["y"]))), batch_size=batch_idx + 1)
            return super().training_step(batch, batch_idx)

    run = few_federation(Logs, clients=1, rounds=1)
    row = run_rows(run)[0]
    assert row["plain"] == (0 + 1 + 2 + 3) / 4
    assert row["weighted"] == pytest.approx((64 * (1 + 2 + 3) + 58 * 4) / 10)

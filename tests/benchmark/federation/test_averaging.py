"""The averaged model: closed forms, what it leaves alone, and that nothing but the rounds decides it."""

import io

import pytest
import torch

from federations import contract_federation, few_data, make_federation, run_rows


def run_of(average_last, rounds=4, **args):
    """A run, its rows and the server's tensors after every round."""
    federation, servers = make_federation("fedavg", few_data(3), rounds, average_last=average_last, **args), []

    class Notes:
        def on_round_end(self, federation, row):
            servers.append(federation.server)

    federation.callbacks = [Notes()]
    return federation, run_rows(federation), servers


def test_averaging_changes_nothing_that_is_trained_or_recorded():
    plain, rows, servers = run_of(0)
    other, others, _ = run_of(2)
    assert plain.averaged is None and plain.summed == {} and rows == others
    assert all(torch.equal(other.server[name], value) for name, value in servers[-1].items())
    assert all(torch.equal(other.method.registered()[name], value) for name, value in servers[-1].items())


@pytest.mark.parametrize("slots", [None, 2])
def test_the_reading_is_that_of_the_mean_of_the_last_rounds(slots):
    federation, rows, servers = run_of(3, slots=slots)
    mean = {name: torch.stack([one[name].double() for one in servers[1:]]).mean(dim=0) for name in servers[0]}
    federation.method.load_tensors({name: value.float() for name, value in mean.items()})
    assert federation.averaged == {"rounds": 3, **federation.evaluate()}
    assert federation.averaged["auc"] not in [row["auc"] for row in rows]


def test_one_round_is_the_last_one_and_a_short_run_is_averaged_whole():
    federation, rows, _ = run_of(1, rounds=2)
    assert federation.averaged == {
        "rounds": 1,
        **{name: rows[-1][name] for name in federation.averaged if name != "rounds"},
    }
    assert run_of(2, rounds=2)[0].averaged == run_of(9, rounds=2)[0].averaged


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_resumed_run_averages_to_the_same_bits(stop):
    """Before the window, in it, and after the last round."""
    whole, *_ = run_of(2)
    states = []

    class Saves:
        def on_round_end(self, federation, row):
            buffer = io.BytesIO()
            torch.save(federation.state_dict(), buffer)
            states.append(buffer)

    first = make_federation("fedavg", few_data(3), 4, average_last=2)
    first.callbacks = [Saves()]
    first.run()
    second = make_federation("fedavg", few_data(3), 4, average_last=2)
    states[stop - 1].seek(0)
    second.load_state_dict(torch.load(states[stop - 1], weights_only=True))
    second.run()
    assert second.averaged == whole.averaged
    assert all(torch.equal(second.summed[name], value) for name, value in whole.summed.items())


def test_a_head_that_only_the_server_holds_is_averaged_with_its_body():
    """FedCon's clients never see the head; averaged features under the last round's head would be another model."""
    federation = contract_federation("fedcon")
    federation.run()
    heads = [name for name in federation.summed if name.startswith("model.head")]
    assert heads and all(federation.method.scope(name) == "server" for name in heads)

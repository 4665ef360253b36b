"""The averaged model: closed forms, what it leaves alone, and that nothing but the rounds decides it."""

import torch

from federations import few_data, make_federation, run_rows


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


def test_one_round_is_the_last_one_and_a_short_run_is_averaged_whole():
    federation, rows, _ = run_of(1, rounds=2)
    assert federation.averaged == {
        "rounds": 1,
        **{name: rows[-1][name] for name in federation.averaged if name != "rounds"},
    }
    assert run_of(2, rounds=2)[0].averaged == run_of(9, rounds=2)[0].averaged

"""The measuring tools measure what they say; what they find is no test."""

import os
import time
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from benchmark.perf import __main__ as command
from benchmark.perf import gpu, rounds
from benchmark.perf.measure import alone, config_of, federation_of


@pytest.mark.timeout(240)
def test_a_task_that_fails_hangs_or_dies_leaves_the_others_alone(monkeypatch):
    with pytest.raises(ValueError, match="invalid literal"):
        alone(int, "many")
    with pytest.raises(BrokenProcessPool, match="abruptly"):
        alone(os._exit, 3)
    monkeypatch.setattr(gpu, "LINE_S", 0.2)
    assert gpu.row_of(["a label"], time.sleep, 100) == ["a label", "failed: stopped after 0 s"]
    assert alone(torch.get_num_threads, threads=2) == 2


def test_growth_counts_what_clients_keep_and_what_is_saved():
    """A client keeps a momentum per parameter, in 4 bytes each; ten of them and the weights are in the checkpoint."""
    parameters, _, _, whole, besides, _, kept, saved, saving = rounds.growth_row("fedavg", "small_cnn", 10, 10)
    assert kept == pytest.approx(4e-6 * parameters, rel=1e-3)
    assert 1 < saved / (11 * kept) < 1.2
    assert whole > besides > 0 and saving > 0


@pytest.mark.parametrize("network", [network for network, _ in gpu.NETWORKS])
def test_every_network_that_is_timed_can_be_made(network):
    data = {"images": 4, "num_clients": 1, "labelled_clients": 1}
    assert federation_of(config_of("fedavg", {}, data, model=network)).rounds == 10_000


@pytest.mark.timeout(240)
def test_the_plan_for_a_gpu_runs_on_the_cpu(tmp_path, monkeypatch, capsys):
    """What fails is a line with the reason; all of it is in the file."""
    monkeypatch.setattr(gpu, "known_names", lambda kind: ["fixmatch", "nobody"])
    words = ["gpu", "--trial", "--parts", "agreement", "--write", str(tmp_path / "page.md")]
    assert command.main(words) == 0
    text = (tmp_path / "page.md").read_text()
    assert "| fixmatch | equal | equal |" in text
    assert "| nobody | failed: ConfigError: unknown method" in text
    assert text.split()[-1] in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_command_refuses_before_it_measures(capsys):
    assert command.main(["gpu:fedavg"]) == 2
    assert "no GPU" in capsys.readouterr().out
    for words, told in ((["layouts:fedavg"], "growth"), (["growth:fedavgg"], "did you mean 'fedavg'")):
        with pytest.raises(SystemExit):
            command.main(words)
        assert told in capsys.readouterr().err

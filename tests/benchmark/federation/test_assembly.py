"""What a configuration describes, put together."""

import pytest
import torch

from benchmark.federation.assembly import assemble, make
from benchmark.launch.run import fit
from datamodules.common.errors import ConfigError
from federations import plain_fabric
from runs import SHORT, configuration


def test_a_view_that_the_pipeline_lacks_is_missed_before_the_first_round(tmp_path):
    """Also where the method would ask for it only after some rounds."""
    with pytest.raises(ConfigError, match=r"SemiFL needs the view 'strong'.*--data\.pipeline"):
        fit(configuration(tmp_path, method="semifl"))


def test_static_norms_are_for_methods_that_measure_their_statistics(tmp_path):
    """Others would normalise test images by each other."""
    static = {**SHORT, "model": "wrn28_2", "model_args": {"depth": 10, "width": 1}}
    with pytest.raises(ConfigError, match=r"FedAvg measures no statistics .* --model_args.norm group, running or"):
        fit(configuration(tmp_path, **{**static, "method": "fedavg"}))


def test_options_of_the_loop_and_the_engine_reach_the_federation(tmp_path):
    """What a configuration says of them is what runs."""

    def made(**options):
        config = configuration(tmp_path, **SHORT, **options)
        return assemble(config, *make(config, torch.device("cpu")), plain_fabric())

    plain, skips = made(), made(nonfinite="skip")
    assert (plain.engine.counts(), plain.engine.context.skips, skips.engine.context.skips) == ({}, False, True)
    turns = made(runtime__engine="slots", runtime__slots=3)
    assert [seat.replay is None for seat in turns.engine.seats] == [False] * 3
    eager = made(runtime__engine="slots", runtime__slots=2, runtime__replay=False)
    assert [seat.replay is None for seat in eager.engine.seats] == [True] * 2


def test_grey_images_reach_networks_of_one_channel(tmp_path):
    """``data.channels`` sets the network's first layer, too."""
    path = fit(configuration(tmp_path, **SHORT, data__channels=1))
    assert torch.load(path / "weights.pt")["model.conv1.weight"].shape[1] == 1

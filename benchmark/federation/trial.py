"""What is tried before a run begins: whether the network fits the data, and can train on their batches."""

import copy

import torch
from torch import nn

from benchmark.federation.engine import Engine
from benchmark.federation.site import RunContext, preserve_modes
from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError, RunError
from methods.base import FedMethod, Visit

ONE_IMAGE = "Expected more than 1 value per channel when training"  # what PyTorch's batch norm says


def check_network(name: str, model: nn.Module, image_shape: list[int], num_classes: int) -> None:
    """Try a new network on two images.

    Args:
        name: as configured.
        model: on the CPU, in single precision.
        image_shape: of one image, or of one feature vector.
        num_classes: number of classes of the data.

    Raises:
        ConfigError: it fails, or does not return logits ``[2, num_classes]``.
    """
    images = torch.zeros(2, *image_shape)
    try:
        with preserve_modes(model), torch.no_grad():
            logits = model.eval()(images)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"model {name} fails on two images of shape {image_shape}: {reason}") from error
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, num_classes):
        found = f"shape {list(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        raise ConfigError(
            f"model {name} returns {found} for two images; the data have {num_classes} classes, so it "
            f"must return a tensor of logits of shape [2, {num_classes}]"
        )


def check_batches(method: FedMethod, data: FSSLDataModule, seed: int, rounds: int) -> None:
    """Refuse batches of one image where batch norm cannot train on one: a client's visit would end the run late.

    Where the network cannot, a client whose streams leave one image over is visited in a copy of the method, since the
    method may join a batch of one with others. One client is tried for each such set of streams.

    Raises:
        ConfigError: names the client, the number of its images and what to do.
    """
    if not _needs_two(method, data):
        return
    tried = set()
    for client in range(data.num_clients):
        own = data.client(client)
        single = [
            (name, len(stream), stream.batch_size)
            for name, stream in method.streams(own).items()
            if stream.min_batch == 1 and len(stream) % stream.batch_size == 1 % stream.batch_size
        ]
        names = tuple(name for name, _, _ in single)
        if not single or names in tried:
            continue
        tried.add(names)
        tested = copy.deepcopy(method)
        engine = Engine(tested, RunContext(data, seed, rounds))
        visit = Visit(0, client, labelled=len(own.labelled) > 0, size=own.size, first=True, rounds=rounds)
        try:
            engine.run_visit(visit, engine.send(visit, tested.tensors("shared", "server")), None)
        except RunError as error:
            if ONE_IMAGE in str(error):
                name, count, size = single[0]
                raise ConfigError(
                    f"client {client} has {count} {name} images: in batches of {size} the last one has a single image, "
                    "on which batch norm cannot train here; leave such batches out with --method.min_batch 2, or give "
                    "another --method.batch_size, or a network with another norm"
                ) from None


def _needs_two(method: FedMethod, data: FSSLDataModule) -> bool:
    """Whether the network cannot train on one image."""
    view = next((view for stream in method.views.values() for view in stream.values()), None)
    if view is None:
        return False
    devices = [data.device] if data.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        image = data.take(view, torch.zeros(1, dtype=torch.int64, device=data.device), torch.Generator(data.device))
        try:
            copy.deepcopy(method.model).train()(image)
        except ValueError as error:
            return ONE_IMAGE in str(error)
    return False

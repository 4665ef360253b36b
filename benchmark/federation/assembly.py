"""Builds what a run describes: the method with its network, the data module, the federation; and tries them first."""

import copy
import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from lightning import Fabric
from lightning.pytorch import Callback
from torch import nn

from benchmark.config import Run
from benchmark.federation.engine import Engine
from benchmark.federation.fit import RunContext
from benchmark.federation.loop import Federation, RoundCallback
from benchmark.federation.site import preserve_modes
from benchmark.registry import build, parameters
from datamodules.base import FSSLDataModule
from datamodules.common.errors import ConfigError, RunError
from methods import models
from methods.base import FedMethod
from methods.models.norm import static_norms

ONE_IMAGE = "Expected more than 1 value per channel when training"  # what PyTorch's batch norm says


def make(run: Run, device: torch.device) -> tuple[Any, FSSLDataModule]:
    """The method with a freshly initialised network, and the data module, both on ``device``.

    The network is built right after torch is seeded with the run's seed, as in the papers' code.

    Raises:
        ConfigError: an argument is wrong or missing, the method needs a view that the data's pipeline lacks, the
            network does not fit the data, or it needs statistics that the method does not measure.
        DataError: the data are missing, or the partition cannot be made.
    """
    dtype = torch.float64 if run.config.precision == "64-true" else torch.float32
    data, devices = run.make_data(), run.config.runtime.devices
    data.place(device, dtype, devices if device.type == "cpu" and isinstance(devices, int) else 1)
    data.setup()
    return make_method(run, data, data.num_clients, data.num_images).to(device=device, dtype=dtype), data


def make_method(run: Run, data: FSSLDataModule, num_clients: int, num_images: int) -> FedMethod:
    """The method with a freshly initialised network, for data that are set up, or that an exported model describes."""
    config = run.config
    torch.default_generator.manual_seed(config.seed)  # the network is built on the CPU
    channels: int = data.hparams.get("channels", 3)
    shape = {"image_size": data.image_size, "in_features": data.feature_dim, "in_channels": channels}
    make_model = partial(models.build, config.model, data.num_classes, **(shape | config.model_args))
    model = make_model()
    image_shape = [data.feature_dim] if data.feature_dim else [channels, *[data.image_size] * 2]
    check_network(config.model, model, image_shape, data.num_classes)
    counts = {"num_classes": data.num_classes, "num_clients": num_clients, "num_images": num_images}
    known: dict[str, Any] = {"model": model, "make_model": make_model, "image_shape": image_shape, **counts}
    needed = parameters(run.class_of("method"))
    method: FedMethod = build(config.method, "method", **{name: known[name] for name in needed if name in known})
    if static_norms(method) and type(method).refresh_norm is FedMethod.refresh_norm:
        raise ConfigError(
            f"{type(method).__name__} measures no statistics for static norms, so {config.model} would normalise test "
            "images by each other; choose --model_args.norm group, running or, if that is wanted, batch"
        )
    needed_views = {view for stream in method.views.values() for view in stream.values()}
    if missing := sorted(needed_views - set(data.views)):
        raise ConfigError(
            f"{type(method).__name__} needs the view {missing[0]!r}, and the data's pipeline has only "
            f"{', '.join(data.views)} (positions and labels are fields of a Stream, no views); choose another "
            "one, such as --data.pipeline randaugment_levels_cutout, and the setting that the method was made for: "
            f"--data.scenario {method.scenario} with a number of labels (docs/usage/runs.md)"
        )
    return method


def check_values(run: Run) -> None:
    """Build the method, the data and the roster of a run on the CPU and drop them, so that a wrong value is refused.

    Raises:
        ConfigError: see ``make``; or the roster does not fit the clients.
        DataError: see ``make``.
    """
    data = make(run, torch.device("cpu"))[1]
    data.roster(run.config.seed, **run.config.roster)
    del data
    gc.collect()  # it refers to itself, and another run may need the memory


def sees_hidden_labels(run: Run) -> bool:
    """Whether a run's method sees labels of unlabelled images (``uses_oracle``); such a run is no record (RULES.md).

    The method is built as for the run, because ``__init__`` or a property may declare it.

    Raises:
        ConfigError: see ``make``.
        DataError: see ``make``.
    """
    return bool(make(run, torch.device("cpu"))[0].uses_oracle)


def assemble(run: Run, fabric: Fabric, callbacks: Sequence[RoundCallback | Callback] = ()) -> Federation:
    """The federation of a run, on the device of ``fabric``.

    Raises:
        ConfigError: see ``make``; or the roster does not fit the clients, or a client has a batch on which the network
            cannot train; or see ``Federation``.
        DataError: see ``make``.
    """
    config = run.config
    method, data = make(run, fabric.device)
    roster = data.roster(config.seed, **config.roster)
    check_batches(method, data, RunContext(data, config.seed, config.rounds, fabric))
    return Federation(
        method,
        data,
        roster,
        fabric,
        config.rounds,
        config.seed,
        config.eval_every,
        callbacks=callbacks,
        slots=config.runtime.slots if config.runtime.engine == "slots" else None,
        replay=config.runtime.replay,
        nonfinite=config.nonfinite,
        average_last=config.average_last,
        sums=config.sums,
    )


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
    try:
        with preserve_modes(model), torch.no_grad():
            logits = model.eval()(torch.zeros(2, *image_shape))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"model {name} fails on two images of shape {image_shape}: {reason}") from error
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, num_classes):
        found = f"shape {list(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        raise ConfigError(
            f"model {name} returns {found} for two images; the data have {num_classes} classes, so it "
            f"must return a tensor of logits of shape [2, {num_classes}]"
        )


def check_batches(method: FedMethod, data: FSSLDataModule, context: RunContext) -> None:
    """Refuse batches of one image where batch norm cannot train on one: a client's visit would end the run late.

    Where the network cannot, clients with a stream that leaves one image over are visited in a copy of the method,
    since the method may join a batch of one with others. Of clients with equal numbers of images, one is tried.

    Raises:
        ConfigError: names the client, the number of its images and what to do.
    """
    image = torch.zeros(1, dtype=torch.int64, device=data.device)
    with context.seeded("trial"), torch.no_grad():
        try:
            copy.deepcopy(method.model).train()(data.take("test", image))
            return
        except Exception as error:  # of another kind: it ends a run only where such a batch occurs
            if ONE_IMAGE not in str(error):
                return
    engine, tried = Engine(copy.deepcopy(method), context), set()
    for client in range(data.num_clients):
        site = data.client(client)
        streams = method.streams(site)
        sizes = tuple((name, len(stream)) for name, stream in streams.items())
        single = [(name, s) for name, s in streams.items() if s.min_batch == 1 and (len(s) - 1) % s.batch_size == 0]
        if not single or sizes in tried:
            continue
        tried.add(sizes)
        visit = context.visit(0, client, site)
        try:
            engine.run_visit(visit, engine.send(visit, method.tensors("shared", "server")), None)
        except RunError as error:
            if ONE_IMAGE in str(error):
                name, stream = single[0]
                raise ConfigError(
                    f"client {client} has {len(stream)} {name} images: in batches of {stream.batch_size} the last one "
                    "has a single image, on which batch norm cannot train here; leave such batches out with "
                    "--method.min_batch 2, or give another --method.batch_size, or a network with another norm"
                ) from None

"""The networks of the papers, by name: plain modules with ``features``, ``head`` and ``feature_dim``."""

import inspect
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from datamodules.common.errors import BenchError, ConfigError, unknown
from datamodules.common.plugins import place, plugin

if TYPE_CHECKING:
    from torch import nn

    from methods.models.backbone import Backbone

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "small_cnn": ("cnn.SmallCNN", {}),
    "lenet": ("cnn.LeNet", {}),
    "resnet18_cifar": ("resnet.ResNet18", {"stem": "cifar", "head": "projection"}),
    "resnet18": ("resnet.ResNet18", {"stem": "imagenet", "head": "linear"}),
    "wrn28_2": ("wrn.WideResNet", {"depth": 28, "width": 2}),
    "wrn28_8": ("wrn.WideResNet", {"depth": 28, "width": 8}),
    "resnet8": ("resnet.ResNet8", {}),
    "resnet9": ("resnet9.ResNet9", {}),
    "resnet9_plain": ("resnet9.PlainResNet9", {}),
    "linear": ("mlp.Linear", {}),
    "mlp": ("mlp.MLP", {}),
    "vit_tiny": ("vit.ViTTiny", {"pretrained": True}),
    "vit_tiny_scratch": ("vit.ViTTiny", {}),
}
"""Module and class in ``methods.models`` (imported when built), and preset arguments of the name."""

SHAPE = ("in_channels", "image_size", "in_features")
"""What ``build`` passes on of the input's shape, to networks that have an argument for it."""


def network(name: str) -> "Callable[..., nn.Module]":
    """Return the class of a key of ``MODELS`` with its preset arguments bound, or what a dotted path names.

    Raises:
        ConfigError: see ``check``.
    """
    if name not in MODELS:
        return _imported(name)
    path, options = MODELS[name]
    module, _, cls = path.rpartition(".")
    return partial(getattr(import_module(f"{__name__}.{module}"), cls), **options)


def build(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    in_features: int | None = None,
    **options: Any,
) -> "Backbone":
    """Build a network, in channels_last memory format.

    Args:
        name: a key of ``MODELS``, or the dotted path of a class or function that returns an ``nn.Module``. Methods that
            use features need a ``Backbone``, or a module with the same attributes.
        num_classes: number of logits; passed by this name.
        in_channels: channels of the input images, passed on if the network has an argument of that name.
        image_size: side of the square input images in pixels, passed on in the same way.
        in_features: length of the feature vectors if these are the input instead of images, passed on in the same way.
        **options: further arguments of the network.

    Raises:
        ConfigError: unknown name (suggests the closest one), a path that cannot be imported or is not a network, an
            unknown option, an option that the network refuses, feature vectors for a network that takes images, or a
            network that does not take the number of classes.
        DataError: the weights of ``vit_tiny`` are not available.
    """
    import torch
    from torch import nn

    check(name, options)
    factory = network(name)
    arguments, _ = _arguments(factory)
    if in_features is not None and name in MODELS and "in_features" not in arguments:
        raise ConfigError(f"model {name} takes images, the data has feature vectors; choose --model linear or mlp")
    shape = {"in_channels": in_channels, "image_size": image_size, "in_features": in_features}
    try:
        model = factory(num_classes=num_classes, **{k: v for k, v in shape.items() if k in arguments}, **options)
    except BenchError:
        raise
    except Exception as error:
        raise ConfigError(
            f"model {name} cannot be built with {options or 'its defaults'}: {type(error).__name__}: {error} "
            f"({place(error)})"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name}: it returned a {type(model).__name__}; it must return a torch.nn.Module")
    return cast("Backbone", model.to(memory_format=torch.channels_last))


def check(name: str, options: Iterable[str]) -> None:
    """Refuse a network that is not there, or that has not these options; without building it.

    Raises:
        ConfigError: unknown name (suggests the closest one), a path that cannot be imported or is not a network, an
            unknown option, or a network that does not take the number of classes.
    """
    arguments, takes_any = _arguments(network(name))
    extra = [option for option in options if option not in (*arguments, *SHAPE)]
    if extra and not takes_any:
        raise ConfigError(f"model {name}: unknown option {', '.join(extra)}; it has {', '.join(arguments)}")
    if "num_classes" not in arguments and not takes_any:
        raise ConfigError(f"model {name}: it has no argument num_classes, so it cannot be used as a classifier")


def _arguments(factory: "Callable[..., nn.Module]") -> tuple[list[str], bool]:
    """Names of the arguments of a network, and whether it takes any others as well."""
    parameters = inspect.signature(factory).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _imported(path: str) -> "Callable[..., nn.Module]":
    from torch import nn

    module = path.rpartition(".")[0]
    if not module:
        raise unknown("model", path, MODELS, "; a dotted path such as my_package.nets.MyNet works too")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(f"model {path}: names from the standard library are refused as models")
    factory = plugin(path, f"model {path}")
    is_module = inspect.isclass(factory) and issubclass(factory, nn.Module)
    if not (is_module or inspect.isfunction(factory) or isinstance(factory, partial)):
        kind = "a class" if inspect.isclass(factory) else f"a {type(factory).__name__}"
        raise ConfigError(f"model {path}: this is {kind}; name a subclass of torch.nn.Module, or a function")
    return cast("Callable[..., nn.Module]", factory)

"""Configurations: names, defaults, identity, round trips, and what is refused."""

import hashlib
import inspect
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from benchmark.config import (
    Run,
    RunConfig,
    Runtime,
    apply,
    differences,
    from_dict,
    identity,
    resolve,
    run_id,
    to_yaml,
    with_pipeline,
)
from benchmark.registry import ClassSpec, parameters, register_local
from datamodules.common.errors import ConfigError
from datamodules.common.yaml import dump_yaml, load_yaml, read_value
from datamodules.partition.roster import Roster
from methods.base import FedMethod
from methods.fedavg import FedAvg
from methods.models import network


class MeanTeacher(FedAvg):
    """A method with arguments of many types."""

    def __init__(
        self, model, decay: float = 0.999, sizes: tuple[int, int] = (3, 5), head: float | None = None, **base: Any
    ):
        super().__init__(model, **base)


MEAN = register_local(MeanTeacher)


def config(**changes):
    return from_dict({"method": MEAN, "data": "digits", "rounds": 3, **changes})


def test_resolve_fills_every_default_of_the_class_and_its_bases():
    bases = resolve(config(method="fedavg")).method
    assert bases.class_path == "methods.fedavg.FedAvg"
    assert bases.init_args["batch_size"] == parameters(FedMethod)["batch_size"].default
    method = resolve(config(method={"class_path": MEAN, "init_args": {"decay": 1}})).method
    assert method.class_path == MEAN
    assert method.init_args == {**bases.init_args, "decay": 1.0, "sizes": [3, 5], "head": None}


def test_resolve_is_idempotent_and_a_default_spelt_out_is_the_same_run():
    once = resolve(config())
    spelt = resolve(config(method={"class_path": MEAN, "init_args": {"decay": "9.99e-1"}}))
    assert resolve(once) == once == spelt
    assert run_id(once) == run_id(spelt)


def test_run_id_is_ten_hex_digits_and_follows_every_field_but_the_runtime():
    plain = resolve(config())
    assert len(run_id(plain)) == 10 and int(run_id(plain), 16) >= 0
    changes = {
        "method": replace(plain.method, init_args={**plain.method.init_args, "lr": 0.5}),
        "data": ClassSpec("svhn"),
        "model": "other",
        "model_args": {"depth": 2},
        "rounds": 4,
        "seed": 2,
        "scale": "lite",
        "roster": {"participants": 5},
        "eval_every": 2,
        "last_k": 3,
        "report": "last",
        "average_last": 2,
        "precision": "bf16-mixed",
        "nonfinite": "skip",
        "sums": "by_rank",
    }
    assert set(changes) == {f.name for f in fields(RunConfig)} - {"runtime"}
    ids = {run_id(replace(plain, **{name: value})) for name, value in changes.items()}
    assert len(ids | {run_id(plain)}) == len(changes) + 1
    with pytest.raises(ConfigError, match=r"report.*average_last"):
        replace(plain, report="averaged")
    with pytest.raises(ConfigError, match="average_last is -1"):
        replace(plain, average_last=-1)
    moved = replace(plain, runtime=Runtime(devices=4, threads=1, data_dir="/elsewhere"))
    assert run_id(moved) == run_id(plain)


def test_run_id_is_the_hash_of_what_the_run_changes():
    changed = resolve(config(method={"class_path": "fedavg", "init_args": {"lr": 0.5}}, seed=1))
    text = (
        '{"data":{"class_path":"datamodules.digits.Digits","init_args":{}},'
        '"method":{"class_path":"methods.fedavg.FedAvg","init_args":{"lr":0.5}},"rounds":3,"seed":1}'
    )
    assert run_id(changed) == hashlib.sha256(text.encode()).hexdigest()[:10]


WIDE_RESNET = {"in_channels": 3, "image_size": 32, "norm": "static", "groups": 32, "head_dropout": 0.0}
RESNET18 = {"in_channels": 3, "head_dropout": 0.0}
NOT_RECORDED = {
    "small_cnn": {"in_channels": 3, "image_size": 32, "head_dropout": 0.0},
    "lenet": {"in_channels": 3, "image_size": 32, "norm": "group", "groups": 4, "head_dropout": 0.0},
    "resnet18_cifar": {**RESNET18, "stem": "cifar", "head": "projection"},
    "resnet18": {**RESNET18, "stem": "imagenet", "head": "linear"},
    "wrn28_2": {**WIDE_RESNET, "depth": 28, "width": 2},
    "wrn28_8": {**WIDE_RESNET, "depth": 28, "width": 8},
    "resnet8": {"in_channels": 3, "width": 4},
    "resnet9": {"in_channels": 3, "width": 64},
    "resnet9_plain": {"in_channels": 3, "width": 64},
    "linear": {"in_features": None},
    "vit_tiny": {"image_size": 224, "head_dropout": 0.0, "pretrained": True},
    "vit_tiny_scratch": {"image_size": 224, "head_dropout": 0.0, "pretrained": False},
}


def test_defaults_that_no_record_holds_do_not_change():
    """Networks and rosters are recorded as they are given: with another default, old records would lie.

    A new option may join, with the value that was meant before.
    """

    def defaults(made):
        parameters = inspect.signature(made).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty and not p.name.startswith("_")}

    for name, known in NOT_RECORDED.items():
        now = defaults(network(name))
        assert {option: now.get(option, "gone") for option in known} == known, name
    assert defaults(Roster) == {"seed": 1337, "participants": None, "rule": "uniform"}


def test_differences_name_what_a_recorded_run_did_otherwise():
    recorded = json.loads(json.dumps(identity(resolve(config()))))
    assert differences(recorded, resolve(config())) == []
    recorded["method"]["init_args"]["lr"] = 0.5
    recorded["method"]["init_args"]["gone"] = 1
    recorded["rounds"] = 9
    assert differences(recorded, resolve(config())) == [
        "method.lr: recorded with 0.5, now 0.03",
        "rounds: recorded with 9, now 3",
    ]


def test_yaml_round_trip():
    full = resolve(config(roster={"participants": 5}, precision="64-true", runtime={"devices": 2, "wandb": "off"}))
    assert from_dict(load_yaml(to_yaml(full), "full")) == full
    alone = to_yaml(full).partition("runtime:")[0]
    again = from_dict(load_yaml(alone, "alone"))
    assert identity(again) == identity(full) and again.runtime == Runtime()


def test_folder_names_the_run():
    run = Run.of(config(method="fedavg", runtime={"results_dir": "r"}))
    assert str(run.folder) == f"r/runs/fedavg-digits-{run_id(run.config)}"
    assert ClassSpec("my_package.mine.Data").name == "my_package.mine.Data"


def test_apply_puts_command_line_options_on_top_without_touching_the_original():
    before = {"method": "a", "rounds": 5, "roster": {"participants": 3}}
    after = apply(
        before, {"method.lr": 0.1, "data": "d", "data.beta": 1, "rounds": 7, "roster.rule": "u", "model": "n"}
    )
    assert after == {
        "method": {"class_path": "a", "init_args": {"lr": 0.1}},
        "data": {"class_path": "d", "init_args": {"beta": 1}},
        "rounds": 7,
        "roster": {"participants": 3, "rule": "u"},
        "model": "n",
    }
    assert apply(after, {"method": "b"})["method"] == {"class_path": "b", "init_args": {"lr": 0.1}}
    assert before == {"method": "a", "rounds": 5, "roster": {"participants": 3}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-4", 5e-4),
        ("1e4", 1e4),
        ("7", 7),
        ("0.50", 0.5),
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("share:0.5", "share:0.5"),
        ("[1, 2]", [1, 2]),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("1.2.3", "1.2.3"),
        ("010", 10),
        ("-007", -7),
        ("0o10", 8),
        ("0x1f", 31),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("2026-11-26", "2026-11-26"),
    ],
)
def test_yaml_values_are_read_as_people_mean_them(text, value):
    assert read_value(text) == value and type(read_value(text)) is type(value)


class Named(FedAvg):
    """A method that names a pipeline."""

    pipeline = "randaugment"


def test_a_method_names_the_pipeline_of_a_data_set_without_one_of_its_own():
    named = register_local(Named)
    assert with_pipeline({"method": named, "data": "digits"})["data"]["init_args"] == {"pipeline": "randaugment"}
    for method, data in (
        (named, {"class_path": "digits", "init_args": {"pipeline": "zoom_crop_flip"}}),
        (named, "ag_news"),
        ("fedavg", "digits"),
    ):
        assert with_pipeline({"method": method, "data": data}) == {"method": method, "data": data}


@pytest.mark.parametrize(
    "text", ["1e5", "5e-4", ".5", "off", "yes", "null", "1_000", "plain", "a: b", "0x1f", "010", "0o7", "1:30"]
)
def test_strings_survive_yaml(text):
    """Whatever YAML 1.1 or 1.2 would take a string for."""
    assert load_yaml(dump_yaml({"value": text}), "here") == {"value": text}

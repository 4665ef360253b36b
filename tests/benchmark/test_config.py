"""Configurations: names, defaults, identity, round trips, and what is refused."""

import hashlib
import inspect
import json
from dataclasses import fields
from typing import Any

import pytest

from benchmark.config import RunConfig, apply, differences, from_dict, identity, resolve, run_id, with_pipeline
from benchmark.registry import parameters, register_local
from datamodules.common.yaml import dump_yaml, load_yaml, read_value
from datamodules.partition.roster import Roster
from methods.base import FedMethod
from methods.fedavg import FedAvg
from methods.models import MODELS, network


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
    """Values have the types of their arguments, and a default that is spelt out is the same run."""
    bases = resolve(config(method="fedavg")).method
    assert bases.class_path == "methods.fedavg.FedAvg"
    assert bases.init_args["batch_size"] == parameters(FedMethod)["batch_size"].default
    given = {"decay": 1, "sizes": "[1, 2]", "head": "null"}
    method = resolve(config(method={"class_path": MEAN, "init_args": given})).method
    assert method.class_path == MEAN and isinstance(method.init_args["decay"], float)
    assert method.init_args == {**bases.init_args, "decay": 1.0, "sizes": [1, 2], "head": None}
    once, spelt = resolve(config()), resolve(config(method={"class_path": MEAN, "init_args": {"decay": "9.99e-1"}}))
    assert resolve(once) == once == spelt and once.method.init_args["sizes"] == [3, 5]
    assert run_id(once) == run_id(spelt)


def test_run_id_is_the_hash_of_all_that_the_run_changes_but_the_runtime():
    changes = {
        "method": {"class_path": "methods.fedavg.FedAvg", "init_args": {"lr": 0.5}},
        "data": {"class_path": "datamodules.digits.Digits", "init_args": {"beta": 2.0}},
        "model": "other",
        "model_args": {"depth": 2},
        "roster": {"participants": 5},
        "rounds": 4,
        "seed": 2,
        "scale": "lite",
        "eval_every": 2,
        "last_k": 3,
        "report": "last",
        "average_last": 2,
        "precision": "bf16-mixed",
        "nonfinite": "skip",
        "sums": "by_rank",
    }
    assert set(changes) == {f.name for f in fields(RunConfig)} - {"runtime"}
    changed = resolve(from_dict({**changes, "runtime": {"devices": 4, "data_dir": "/elsewhere"}}))
    text = json.dumps(changes, sort_keys=True, separators=(",", ":"))
    assert run_id(changed) == hashlib.sha256(text.encode()).hexdigest()[:10]


def test_defaults_that_no_record_holds_do_not_change():
    """Networks and rosters are recorded as they are given: with another default, old records would lie.

    Tests of networks pin their sizes; no network has dropout in its head unless it is asked for.
    """

    def defaults(made):
        parameters = inspect.signature(made).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty and not p.name.startswith("_")}

    assert {defaults(network(name)).get("head_dropout", 0.0) for name in MODELS} == {0.0}
    assert defaults(network("vit_tiny"))["pretrained"] and not defaults(network("vit_tiny_scratch"))["pretrained"]
    assert defaults(Roster) == {"seed": 1337, "participants": None, "rule": "uniform"}


def test_differences_name_what_a_recorded_run_did_otherwise():
    recorded = identity(resolve(config()))
    assert differences(recorded, resolve(config())) == []
    recorded["method"]["init_args"]["lr"] = 0.5
    recorded["method"]["init_args"]["gone"] = 1
    recorded["rounds"] = 9
    assert differences(recorded, resolve(config())) == [
        "method.lr: recorded with 0.5, now 0.03",
        "rounds: recorded with 9, now 3",
    ]


def test_options_on_top_leave_the_original_as_it_was():
    """The name of another class keeps the arguments."""
    before = {"method": {"class_path": "a", "init_args": {"lr": 0.1}}, "roster": {"participants": 3}}
    after = apply(before, {"method": "b", "method.momentum": 0.5, "roster.rule": "u"})
    assert after["method"] == {"class_path": "b", "init_args": {"lr": 0.1, "momentum": 0.5}}
    assert after["roster"] == {"participants": 3, "rule": "u"}
    assert before == {"method": {"class_path": "a", "init_args": {"lr": 0.1}}, "roster": {"participants": 3}}


MEANT = {
    "5e-4": 5e-4,
    "1e4": 1e4,
    "7": 7,
    "0.50": 0.5,
    "1.": 1.0,
    "-.5": -0.5,
    "010": 10,
    "-007": -7,
    "0x1f": 31,
    "0o10": 8,
    "1_000": 1000,
    "true": True,
    "TRUE": True,
    "null": None,
    "[1, 2]": [1, 2],
    **{text: text for text in ("=", "off", "yes", "no", "share:0.5", "1.2.3", "1:30", "2026-11-26")},
}


@pytest.mark.parametrize("text", MEANT)
def test_yaml_is_read_as_people_mean_it(text):
    """And whatever YAML 1.1 or 1.2 takes a text for, a text that is written stays one."""
    assert read_value(text) == MEANT[text] and type(read_value(text)) is type(MEANT[text])
    assert load_yaml(dump_yaml({"value": text}), "here") == {"value": text}


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

"""The files in docs/examples: the template learns, and the sweep's command line is one that `fit` understands."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import yaml

from benchmark.api import fit
from benchmark.cli import main, split_dotted
from benchmark.contract.checks import CHECKS
from datamodules.common.options import HOLDOUTS
from federations import class_of, make_federation
from methods.base import Upload

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(EXAMPLES)
    return "template.Template"


def test_the_template_does_not_collapse(template: str) -> None:
    """Labels at one of three clients: ten rounds of them, then pseudo-labels, and no fall to chance (10 %)."""
    data_args = {"num_clients": 3, "partition": "iid"}
    found = fit(template, "digits", rounds=14, data_args=data_args, method_args={"batch_size": 16}, threads=1)
    assert found.config.data.init_args["pipeline"] == "randaugment_levels"  # named by the method
    rounds = found.rounds.set_index("round")
    assert list(rounds["participants"][:10]) == [1] * 10 and rounds["participants"][10:].max() == 3
    assert rounds["pseudo/selected"][10:].max() > 0
    assert rounds["acc"].iloc[-1] > max(40.0, rounds["acc"][9] - 5.0)


def test_labels_and_what_was_learnt_count_in_the_templates_average(template: str) -> None:
    """In the warm-up the client with labels is alone; then a client weighs what it is sure about."""
    rounds: list[dict[int, float]] = []

    class Weighs(class_of(template)):  # type: ignore[misc]
        def aggregate(self, uploads: Sequence[Upload]) -> None:
            rounds.append({one.visit.client: one.weight for one in uploads})
            super().aggregate(uploads)

    federation = make_federation(Weighs, rounds=2, label_weight=50.0, warmup_rounds=1, threshold=0.0)
    federation.run()
    sizes = {c: (len(site.labelled), len(site.unlabelled)) for c, site in enumerate(federation.data.clients)}
    assert rounds[0] == {c: 50 * labelled for c, (labelled, _) in sizes.items() if labelled}
    assert rounds[1] == {c: 50 * labelled + unlabelled for c, (labelled, unlabelled) in sizes.items()}


@pytest.mark.parametrize("check", ["pseudo_labels_flow", "resume_is_exact"])
def test_the_template_keeps_the_contract(template: str, check: str) -> None:
    CHECKS[check](template)


def test_the_sweep_is_of_commands_that_fit_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """W&B's own function makes the command line; `fit` reads it, and no test image or reported seed takes part."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    sweep = yaml.safe_load((EXAMPLES / "sweep.yaml").read_text(encoding="utf-8"))
    names, values = list(sweep["parameters"]), [one["values"] for one in sweep["parameters"].values()]
    points = list(product(*values))
    for point in (points[0], points[-1]):
        args = {name: {"value": value} for name, value in zip(names, point, strict=True)}
        flags = utils.create_sweep_command_args({"args": args})["args"]
        line = [part for word in sweep["command"] for part in (flags if word == "${args}" else [word])]
        assert line[1:3] == ["-m", "benchmark"]
        _, dotted = split_dotted(line[3:])
        assert any(float(dotted.get(f"data.{name}", 0)) for name in HOLDOUTS)
        assert dict(zip(names, point, strict=True))["seed"] >= 1000
        own = [word for word in line[3:] if not word.startswith("--wandb")]
        assert main([*own, "--rounds=1", "--results_dir", str(tmp_path), "--wandb=off", "--accelerator=cpu"]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert "acc" in capsys.readouterr().out

"""A data module and a method in a plain ``Trainer``."""

import lightning as L
import pytest
import torch

from benchmark.registry import KINDS, find_class
from datamodules.common.errors import ConfigError
from federations import few_data, make_data, make_method

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*GPU available.*")


def trainer(**options):
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return L.Trainer(accelerator="cpu", devices=1, **dict.fromkeys(quiet, False), **options)


class Listens(find_class("fedavg", KINDS["method"])):
    """Keeps the labelled batches that it trains on."""

    def on_fit_start(self):
        super().on_fit_start()
        self.seen = []

    def on_train_batch_start(self, batch, batch_idx):
        self.seen.append(batch["labelled"])


def test_fedavg_in_a_plain_trainer():
    """Two epochs of ordinary centralised training, in another order each, and a test accuracy."""
    data, method, run = few_data(5), make_method(Listens, lr=0.1), trainer(max_epochs=2)
    run.fit(method, datamodule=data)
    seen = [batch["y"].tolist() for batch in method.seen]
    assert [len(y) for y in seen] == 2 * [64, 64, 64, 58]
    first, second = (sorted(y for part in seen[k : k + 4] for y in part) for k in (0, 4))
    assert first == second == sorted(data.train_labels.tolist())
    assert seen[:4] != seen[4:]
    (result,) = run.test(method, datamodule=data, verbose=False)
    method.eval()
    predicted = torch.cat([method.predict(block()) for _, block in data.test_blocks(90)]).argmax(dim=1)
    assert result["acc"] == pytest.approx(float((predicted == data.test_labels).float().mean()) * 100, rel=1e-5)


def test_batches_of_a_plain_trainer_follow_the_runs_seed_and_the_epoch(tmp_path):
    """Another seed, another order of the same clients' images; a resumed fit sees what it would have seen."""

    def fit(seed, epochs, **options):
        method, run = make_method(Listens, lr=0.1), trainer(max_epochs=epochs, limit_train_batches=1)
        run.fit(method, datamodule=few_data(5, run_seed=seed), **options)
        return run, [batch["x"].sum().item() for batch in method.seen]

    _, whole = fit(0, 2)
    run, first = fit(0, 1)
    run.save_checkpoint(tmp_path / "one.ckpt")
    assert whole[:1] == first != whole[1:]
    assert fit(0, 2, ckpt_path=tmp_path / "one.ckpt")[1] == whole[1:]
    assert fit(1, 1)[1] != first


def test_loaders_need_a_trainer():
    data = make_data()
    for loader in (data.train_dataloader, data.test_dataloader):
        with pytest.raises(ConfigError, match=r"the loaders of Digits .* trainer.fit\(module, datamodule"):
            loader()


def test_a_plain_trainer_sees_revealed_labels_and_the_methods_test_batches():
    """The upper bound trains on them; batches of the test matter to networks that normalise with them."""
    options = {"num_labels": 60, "hidden_labels": "revealed", "pipeline": "randaugment_levels_cutout"}
    data, fields, sizes = few_data(6, scenario="all_clients", **options), set(), []

    class Listens(find_class("local_ssl", KINDS["method"])):
        def on_train_batch_start(self, batch, batch_idx):
            fields.update(batch["unlabelled"])

        def test_step(self, batch, batch_idx):
            sizes.append(len(batch["test"]["y"]))

    method = make_method(Listens, unsup_weight=0.0, eval_batch=40)
    run = trainer(max_epochs=1, limit_train_batches=2)
    run.fit(method, datamodule=data)
    run.test(method, datamodule=data, verbose=False)
    assert "y" in fields
    assert sizes == [40, 40, 10]


def test_an_ordinary_module_in_a_plain_trainer():
    """It gets unlabelled images, and no labels of theirs, if it asks for them, in batches of the size that it names."""

    class Ordinary(L.LightningModule):
        views = {"labelled": {"x": "weak"}, "unlabelled": {"x": "weak", "strong": "test"}}

        def __init__(self, batch_size=50):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Linear(3 * 16 * 16, 10)

        def training_step(self, batch, batch_idx):
            assert set(batch["unlabelled"]) == {"x", "strong"} and len(batch["labelled"]["y"]) == 50
            return torch.nn.functional.cross_entropy(
                self.net(batch["labelled"]["x"].flatten(1)), batch["labelled"]["y"]
            )

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    run = trainer(max_epochs=1)
    run.fit(Ordinary(), datamodule=few_data(5, 1, side=16))
    assert run.global_step == 200 // 50


@pytest.mark.parametrize("name", ["fedrgd", "flexmatch", "methods.ablations.fixmatch.EveryStep"])
def test_pseudo_labels_of_a_step_are_made_in_a_plain_trainer_too(name):
    data = few_data(5, scenario="all_clients", labels_per_class=2, pipeline="randaugment_levels_cutout")
    run = trainer(max_epochs=1, limit_train_batches=2)
    run.fit(make_method(name), datamodule=data)
    assert run.global_step > 0


@pytest.mark.parametrize("name", ["semifl", "feddb", "fl2"])
def test_pseudo_labels_of_a_visit_are_missing_in_a_plain_trainer_and_one_error_says_so(name):
    """They are made at the start of a client's visit, which a plain Trainer does not have."""
    data = few_data(5, scenario="server", num_labels=60, pipeline="randaugment_levels_cutout")
    with pytest.raises(
        ConfigError,
        match=r"training_step asks for 'y', but a batch of a plain Trainer has only index, weak, strong: "
        r".* local_work, .*; train it in a federation, with `fit`",
    ):
        trainer(max_epochs=1).fit(make_method(name), datamodule=data)

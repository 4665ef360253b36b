"""The suite of pictures of clothes: rows of a table share the setting."""

from benchmark.board.admit import candidates
from benchmark.config import Runtime, apply, from_dict, identity, resolve
from papers import load
from runs import setting


def test_rows_of_a_table_share_the_setting() -> None:
    papers = load("images")
    for table in papers.tables:
        configs = {row.method: papers.run(row, "board").config for row in table.rows}
        first = configs[table.reference or table.rows[0].method]
        assert all(setting(config) == setting(first) for config in configs.values())
        hidden = {name for name, c in configs.items() if c.data.init_args["hidden_labels"] == "hidden"}
        assert set(configs) - hidden == set(table.bounds) | ({"revealed labels"} & set(configs))


def test_rows_and_labels_of_digits_are_those_of_the_texts() -> None:
    """But for the two of the central trial, which are in no table."""
    own, texts = load("mnist"), load("news")
    assert [(t.number, [row.method for row in t.rows]) for t in own.tables] == [
        (t.number, [row.method for row in t.rows]) for t in texts.tables
    ]
    more = set(own.spec.labels) - set(texts.spec.labels)
    assert more == {"central supervised", "central FixMatch"}
    assert texts.spec.labels.items() <= own.spec.labels.items()


def test_one_central_trial_serves_all_settings() -> None:
    """Its two rows differ in the weight of unlabelled images alone, and its seeds were in no pilot."""
    asked = candidates(load("images"), "board", Runtime())
    assert [one.name for one in asked] == [f"{name}/Fashion-MNIST" for name in ("clients", "server", "all")]
    trials = [{label: one.runs[label] for label in (one.supervised, one.semi_supervised)} for one in asked]
    ids = {run.id for trial in trials for runs in trial.values() for run in runs}
    assert len(ids) == 2 * len(trials[0]["central FixMatch"])
    supervised, fixmatch = (runs[0].config for runs in trials[0].values())
    weights = [config.method.init_args["lambda_u"] for config in (supervised, fixmatch)]
    assert weights == [0, 1] and supervised.data.init_args["num_clients"] == 1
    same = apply(identity(supervised), {"method.lambda_u": 1})
    assert identity(resolve(from_dict(same))) == identity(fixmatch)
    assert min(run.config.seed for run in trials[0]["central FixMatch"]) >= 1010

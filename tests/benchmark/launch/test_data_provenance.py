"""What a record says about the data: whose draws were not taken, and that it says nothing where there is no rule."""

from benchmark.launch.worker import data_provenance as recorded
from datamodules.digits import Digits

SKEWED = {"num_clients": 8, "labelled_clients": 3, "beta": 0.5, "labelled_pick": "index0", "partition_seed": 3}


def made(**options):
    data = Digits(**SKEWED, **options)
    data.setup()
    return data


def test_the_draws_that_were_not_taken_are_counted():
    """The histogram beside the count shows that the rule holds."""
    plain, ruled = made(), made(labelled_min_per_class=25)
    assert "partition_redraws" not in recorded(plain)
    told = recorded(ruled)
    assert told["partition_redraws"] == ruled.partition.redraws > 0
    assert min(map(sum, zip(*told["labelled_histogram"], strict=True))) >= 25
    least = min(map(sum, zip(*recorded(plain)["labelled_histogram"], strict=True)))
    assert least < 25
    assert recorded(made(labelled_min_per_class=max(1, least)))["partition_redraws"] == 0


def test_a_record_does_not_list_the_classes_of_very_many_clients():
    assert len(recorded(made(), most_listed=8)["class_counts"]["unlabelled"]) == 8
    assert not {"class_counts", "labelled_histogram"} & recorded(made(), most_listed=7).keys()


def test_held_out_images_are_what_is_tested_on():
    assert recorded(made(balanced_holdout=50))["test_images"] == 50

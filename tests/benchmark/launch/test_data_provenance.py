"""What a record says about the data."""

from benchmark.launch.worker import data_provenance as recorded
from datamodules.digits import Digits

SKEWED = {"num_clients": 8, "labelled_clients": 3, "beta": 0.5, "labelled_pick": "index0", "partition_seed": 3}


def made(**options):
    data = Digits(**SKEWED, **options)
    data.setup()
    return data


def test_a_record_does_not_list_the_classes_of_very_many_clients():
    assert len(recorded(made(), most_listed=8)["class_counts"]["unlabelled"]) == 8
    assert not {"class_counts", "labelled_histogram"} & recorded(made(), most_listed=7).keys()


def test_held_out_images_are_what_is_tested_on():
    assert recorded(made(balanced_holdout=50))["test_images"] == 50

"""What clients hold, and what metrics may ask of hidden labels."""

import torch

from datamodules.partition.sites import Oracle, SiteData, Sites
from federations import few_data, make_data


def test_a_client_can_be_handed_something_else():
    data = make_data()
    site = data.client(1)
    data.clients[1] = SiteData(site.labelled[:0], site.labels[:0], site.unlabelled[:3])
    assert data.client(1).size == 3 and 1 not in data.roster(0).labelled


def test_the_oracle_says_right_or_wrong_and_nothing_else():
    data = make_data()
    truth = data.train_labels
    index = torch.tensor([3, 1400, 7, 7])
    oracle = Oracle(truth)
    assert oracle.correct(index, truth[index]).all()
    assert not oracle.correct(index, (truth[index] + 1) % 10).any()
    assert [name for name in vars(oracle) if not name.startswith("_")] == []
    assert data.oracle.correct(index, truth[index]).tolist() == [True] * 4


def test_a_site_is_made_when_it_is_asked_for():
    """It holds what the partition says, and setting a site up for a million clients makes none of them."""
    data = few_data(4, 2)
    for client, site in enumerate(data.clients):
        assert site.labelled.tolist() == data.partition.labelled[client].tolist()
        assert site.unlabelled.tolist() == data.partition.unlabelled[client].tolist()
    assert len(data.clients) == 4 and data.clients[-1].unlabelled.equal(data.client(3).unlabelled)
    made = []
    sites = Sites(data.partition.labelled, data.partition.unlabelled, lambda *own: made.append(own), data.device)
    assert len(sites) == 4 and sites.labelled() == (0, 1) and not made

"""What clients hold, and what metrics may ask of hidden labels."""

import pytest
import torch

from datamodules.partition.sites import HIDDEN, SiteData, Sites, true_labels
from federations import few_data, make_data


def test_a_client_can_be_handed_something_else():
    data = make_data()
    site = data.client(1)
    data.clients[1] = SiteData(site.labelled[:0], site.labels[:0], site.unlabelled[:3])
    assert data.client(1).size == 3 and 1 not in data.roster(0).labelled


@pytest.mark.parametrize("labels", ["hidden", "revealed"])
def test_a_data_module_has_the_labels_that_a_site_has(labels):
    data = make_data(hidden_labels=labels)
    known = torch.zeros(data.num_images, dtype=torch.bool)
    for site in data.clients:
        known[torch.cat([site.labelled, *([site.unlabelled] if labels == "revealed" else [])])] = True
    assert torch.equal(data.train_labels != HIDDEN, known)
    assert torch.equal(data.train_labels[known], true_labels(data)[known])


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

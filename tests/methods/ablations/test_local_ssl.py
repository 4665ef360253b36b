"""The reference without FedDure's regulators."""

from feddure_steps import Norm, federation
from federations import make_data
from methods.ablations.local_ssl import WithoutRegulators
from methods.local_ssl import LocalSSL


def test_without_regulators_only_the_batches_are_feddures() -> None:
    """The step is FixMatch's, in batches of FedDure's sizes: four of a client with few labels, in place of two."""
    data = make_data("all_clients")
    method = WithoutRegulators(Norm(), threshold=0.0)
    site = data.client(0)
    sizes = [made.streams(site)["unlabelled"].batch_size for made in (method, federation().method, LocalSSL(Norm()))]
    assert sizes[0] == sizes[1] != sizes[2]
    assert method.automatic_optimization

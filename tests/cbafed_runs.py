"""Runs of CBAFed on a small network and a few images per client."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmark.federation.loop import Federation
from benchmark.federation.site import LocalSite
from datamodules.base import SiteData
from datamodules.digits import Digits
from federations import make_data, plain_fabric
from methods.base import Stream, Visit
from methods.cbafed import CBAFed

EASY = {"cba_tau": 0.05, "cba_tau_h": 0.2, "tail_beta": 0.9}


class Net(nn.Module):
    """A small network with batch norm, for 32 x 32 images."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, 10]``."""
        return self.head(self.body(x))


def small(data: Digits, images: int = 40) -> Digits:
    """The same data with at most so many images per client."""
    for k, site in enumerate(data.clients):
        data.clients[k] = SiteData(site.labelled[:images], site.labels[:images], site.unlabelled[:images])
    return data


def federation(
    rounds: int = 3, data: Digits | None = None, double: bool = False, cls: type[CBAFed] = CBAFed, **args: Any
) -> Federation:
    """CBAFed around ``Net`` on a few images per client, in stage 2 from round 1 on."""
    torch.manual_seed(0)
    options = {"warmup_rounds": 1, "labelled_epochs": 3, "res_skip": 2, "batch_size": 16, **EASY, **args}
    method, data = cls(Net(), 10, **options), data or small(make_data())
    if double:
        method = method.double()
        data.place(torch.device("cpu"), torch.float64)
        small(data)
    return Federation(method, data, data.roster(0), plain_fabric(), rounds, seed=0)


def after(rounds: int, **args: Any) -> dict[str, Tensor]:
    """The server's tensors after so many rounds."""
    made = federation(rounds, **args)
    for number in range(rounds):
        made.run_round(number)
    return made.server


def same(a: dict[str, Tensor], b: dict[str, Tensor], prefix: str = "model.") -> bool:
    """Whether two servers hold the same model, bit for bit."""
    return all(torch.equal(v, b[k]) for k, v in a.items() if k.startswith(prefix))


def unlabelled_visit(made: Federation) -> Visit:
    """A visit of an unlabelled client in round 1."""
    return next(v for v in made.visits(1) if not v.labelled)


def at_unlabelled_client(made: Federation) -> Any:
    """The site of an unlabelled client in round 1, with the method in its place."""
    visit = unlabelled_visit(made)
    made.method.load_tensors(made.server)
    made.method.visit = visit
    return LocalSite(made.method, made.engine.context, made.data.client(visit.client), visit, [])


def pseudo_set(method: CBAFed, site: Any) -> Stream:
    """What an unlabelled client walks through in its only epoch."""
    (work,) = method.local_work(site)
    return (work() if callable(work) else work).streams["pseudo"]

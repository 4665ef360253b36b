"""States of a run for tests of checkpoints, and files of checkpoints that were made by hand."""

import hashlib
import io
import os

import torch

from benchmark.federation import checkpoint

CLIENTS = "checkpoint.clients"


def made(number, clients=(0,)):
    """A state after some rounds; ``clients`` says in which of them each client took part last."""
    return {
        "round": number,
        "w": torch.full((1000,), float(number)),
        "nested": {"a": [(number, torch.tensor(number))]},
        "changed": {"clients": dict(enumerate(clients))},
        "clients": {c: ({"own": torch.full((10,), float(last))}, [[{"step": last}]]) for c, last in enumerate(clients)},
        "memory": {7: {}},
    }


STATES = [made(number, (number, 0)) for number in range(4)]


def equal(found, number):
    expected = STATES[number]
    return (
        found is not None
        and list(found) == list(expected)
        and found["round"] == number
        and torch.equal(found["w"], expected["w"])
        and torch.equal(found["nested"]["a"][0][1], torch.tensor(number))
        and [torch.equal(found["clients"][c][0]["own"], v[0]["own"]) for c, v in expected["clients"].items()]
        == [True] * 2
        and [found["clients"][c][1] for c in (0, 1)] == [[[{"step": number}]], [[{"step": 0}]]]
        and found["memory"] == {7: {}}
    )


class Runs:
    """Unpickled, it runs code of whoever wrote the file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def saved(content):
    """A file of ``torch``, as bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def sealed(content, magic=checkpoint.MAGIC):
    """The file of a head whose checksum is right, whatever it holds."""
    body = saved(content)
    return magic + hashlib.sha256(body).digest() + body

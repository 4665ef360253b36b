"""States of a run for tests of checkpoints, and files of checkpoints that were made by hand."""

import hashlib
import io
import os

import torch

from benchmark.contract.attributes import same
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
    """Whether this is the state after so many rounds; what had changed in a round may be kept in any form."""
    return found is not None and same({**found, "changed": None}, {**STATES[number], "changed": None})


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

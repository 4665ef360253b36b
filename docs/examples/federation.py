"""Federations from Python: with names, and with your own classes. Needs no download and takes seconds."""

# By name. The arguments are those of the command line.
from benchmark.api import fit

data_args = {"num_clients": 3, "labelled_clients": 3, "partition": "iid"}
method_args = {"lr": 0.02, "batch_size": 16}
result = fit("fedavg", "digits", rounds=8, data_args=data_args, method_args=method_args)
print(result.rounds[["round", "acc", "loss", "bytes_up"]])

# With classes, which may be defined in the same file.
from dataclasses import replace

import torch.nn.functional as F

from datamodules.digits import Digits
from methods.base import FedMethod


class Smoothed(FedMethod):
    """Cross-entropy with smoothed labels."""

    def __init__(self, model, smoothing=0.1, **base):
        super().__init__(model, **base)

    def training_step(self, batch, batch_idx):
        """Compute the loss of a batch."""
        samples = batch["labelled"]
        return F.cross_entropy(self(samples["x"]), samples["y"], label_smoothing=self.hparams.smoothing)


class Parity(Digits):
    """Is the digit odd?"""

    num_classes = 2

    def read(self):
        """Read the digits, with two classes."""
        digits = super().read()
        return replace(
            digits,
            train_labels=digits.train_labels % 2,
            test_labels=digits.test_labels % 2,
            class_names=("even", "odd"),
        )


own = fit(Smoothed, Parity, rounds=5, data_args=data_args, method_args={**method_args, "smoothing": 0.2})
print(own.readings[["acc", "recall"]])
print(own.method.model)

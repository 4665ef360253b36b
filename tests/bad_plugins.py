"""Sources of the modules that ``bad_inputs`` names: methods and data sets with one fault each."""

MODULES = {
    "bad_syntax": "class Mine:\n    lr = = 1\n",
    "bad_import": "import no_such_package\n",
    "bad_raise": "1 / 0\n",
    "bad_exit": "import sys\nsys.exit(0)\n",
    "bad_methods": '''
import asyncio
import sys

import torch

from methods.base import FedMethod, Pass, Stream, Upload
from methods.fedavg import FedAvg

WEIGHT = "model.conv1.weight"


class Mine(FedAvg):
    pass


class Plain:
    pass


class Constructor(FedAvg):
    def __init__(self, model, **base):
        super().__init__(model, **base)
        {}["width"]


class Required(FedAvg):
    def __init__(self, model, mu: float, **base):
        super().__init__(model, **base)


class NotNamed(FedAvg):
    def __init__(self, net, **base):
        super().__init__(net, **base)


class NoSuper(FedAvg):
    def __init__(self, model, **base):
        pass


class ScopeValue(FedAvg):
    scopes = {**FedAvg.scopes, "model": "share"}


class ScopePrefix(FedAvg):
    scopes = {**FedAvg.scopes, "modle": "personal"}


class ScopeUnregistered(FedAvg):
    scopes = {**FedAvg.scopes, "anchor": "personal"}

    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.anchor = torch.zeros(3)


class ViewsStream(FedAvg):
    views = {"labeled": {"x": "weak"}}


class ViewsName(FedAvg):
    views = {"labelled": {"x": "wek"}}


class HookName(FedAvg):
    def agregate(self, uploads):
        pass


class KerasName(FedAvg):
    def on_train_begin(self):
        pass


class StepsZero(FedAvg):
    def local_work(self, client):
        return [Pass(self.streams(client.data), steps=0)]


class OptimizerScope(FedAvg):
    def optimizer_scopes(self):
        return ["personnal"]


class Optimizer(FedAvg):
    def configure_optimizers(self):
        return ["sgd"]


class SelectsNone(FedAvg):
    def select_clients(self, round, roster):
        return None


class SelectsFlat(FedAvg):
    def select_clients(self, round, roster):
        return [0, 1]


class SelectsUnknown(FedAvg):
    def select_clients(self, round, roster):
        return [[0, 77]]


class SendsNone(FedAvg):
    def broadcast(self, server, visit):
        return None


class SendsUnknown(FedAvg):
    def broadcast(self, server, visit):
        return {**super().broadcast(server, visit), "teacher": torch.zeros(1)}


class SendsShape(FedAvg):
    def broadcast(self, server, visit):
        return {**super().broadcast(server, visit), WEIGHT: torch.zeros(1)}


class WorkNone(FedAvg):
    def local_work(self, client):
        return None


class OthersImages(FedAvg):
    def local_work(self, client):
        places = torch.arange(len(client.data.labelled))
        return [Pass({"labelled": Stream(places, 64, {"x": "weak"}, {"y": client.data.labels})})]


class BoundAnew(FedAvg):
    def __init__(self, model, **base):
        super().__init__(model, **base)
        self.register_buffer("count", torch.zeros(()))

    def local_work(self, client):
        self.count = self.count + 1
        return []


class Cancelled(FedAvg):
    def local_work(self, client):
        raise asyncio.CancelledError("by nobody")


class StepVector(FedAvg):
    def training_step(self, batch, batch_idx):
        return torch.zeros(2)


class StepRaises(FedAvg):
    def training_step(self, batch, batch_idx):
        return batch["labelled"]["strong"]


class StepDetached(FedAvg):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).detach()


class Uploads(FedAvg):
    """Without a step, so that its wrong upload comes at once."""

    def local_work(self, client):
        return []

    def make_upload(self, client):
        return self.spoil(super().make_upload(client))


class UploadDict(Uploads):
    def spoil(self, upload):
        return upload.tensors


class UploadShape(Uploads):
    def spoil(self, upload):
        upload.tensors[WEIGHT] = torch.zeros(1)
        return upload


class UploadLacks(Uploads):
    def spoil(self, upload):
        del upload.tensors[WEIGHT]
        return upload


class UploadMore(Uploads):
    def spoil(self, upload):
        upload.tensors["model.more"] = torch.zeros(1)
        return upload


class UploadWeight(Uploads):
    def spoil(self, upload):
        upload.weight = -1.0
        return upload


class UploadNaN(Uploads):
    def spoil(self, upload):
        upload.tensors[WEIGHT][0] = torch.nan
        return upload


class Idle(FedAvg):
    def local_work(self, client):
        return []


class AggregateShape(Idle):
    def aggregate(self, uploads):
        self.load_tensors({"model.conv1.bias": torch.zeros(1)})


class Scopes(Idle):
    def optimizer_scopes(self):
        raise LookupError("no scope")


class RemembersKey(Idle):
    def remember(self, uploads):
        return {"server": {"x": torch.zeros(1)}}


class RemembersNone(Idle):
    def remember(self, uploads):
        return None


class PredictsNone(Idle):
    def predict(self, x):
        return None


class PredictsLogits(Idle):
    def predict(self, x):
        return self(x)


class Exits(Idle):
    def make_upload(self, client):
        sys.exit(0)
''',
    "bad_data": """
import numpy as np

from datamodules.base import FSSLDataModule
from datamodules.io.sources import Arrays

CLASSES = tuple("abcde")


def arrays(train=None, classes=CLASSES):
    train = np.zeros((60, 8, 8, 3), np.uint8) if train is None else train
    labels = np.arange(60) % len(classes)
    return Arrays(train, labels, np.zeros((10, 8, 8, 3), np.uint8), np.arange(10) % len(classes), classes, {})


class Own(FSSLDataModule):
    num_classes, image_size, mean, std = 5, 8, (0.5,), (0.5,)

    def __init__(self, pipeline: str = "pad_crop_flip", **base):
        super().__init__(pipeline=pipeline, **base)


class Returns(Own):
    def read(self):
        return None


class Raises(Own):
    def read(self):
        raise KeyError("no such column")


class Beyond(Own):
    def read(self):
        return arrays(classes=tuple("abcdefghij"))


class Features(Own):
    def read(self):
        features = np.zeros((60, 1, 4), np.float32)
        features[3, 0, 2] = np.nan
        return arrays(features)


class NoClasses(FSSLDataModule):
    mean, std = (0.5,), (0.5,)

    def read(self):
        return arrays()
""",
}

"""Methods with one fault each, for ``test_bad_inputs``."""

import torch

from methods.fedavg import FedAvg

WEIGHT = "model.conv1.weight"


class Plain:
    pass


class Constructor(FedAvg):
    def __init__(self, model, **base):
        super().__init__(model, **base)
        {}["width"]


class Required(FedAvg):
    def __init__(self, model, mu: float, **base):
        super().__init__(model, **base)


class ScopeValue(FedAvg):
    scopes = {**FedAvg.scopes, "model": "share"}


class ScopePrefix(FedAvg):
    scopes = {**FedAvg.scopes, "modle": "personal"}


class ViewsStream(FedAvg):
    views = {"labeled": {"x": "weak"}}


class ViewsName(FedAvg):
    views = {"labelled": {"x": "wek"}}


class HookName(FedAvg):
    def agregate(self, uploads):
        pass


class StepRaises(FedAvg):
    def training_step(self, batch, batch_idx):
        return batch["labelled"]["strong"]


class StepVector(FedAvg):
    def training_step(self, batch, batch_idx):
        return torch.zeros(2)


class StepDetached(FedAvg):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx).detach()


class Idle(FedAvg):
    """Without a step, so that what is wrong comes at once."""

    def local_work(self, client):
        return []


class OptimizerScope(Idle):
    def optimizer_scopes(self):
        return ["personnal"]


class SelectsUnknown(Idle):
    def select_clients(self, round, roster):
        return [[0, 77]]


class SendsUnknown(Idle):
    def broadcast(self, server, visit):
        return {**super().broadcast(server, visit), "teacher": torch.zeros(1)}


class SendsShape(Idle):
    def broadcast(self, server, visit):
        return {**super().broadcast(server, visit), WEIGHT: torch.zeros(1)}


class UploadLacks(Idle):
    def make_upload(self, client):
        upload = super().make_upload(client)
        del upload.tensors[WEIGHT]
        return upload


class UploadWeight(Idle):
    def make_upload(self, client):
        upload = super().make_upload(client)
        upload.weight = -1.0
        return upload


class AggregateShape(Idle):
    def aggregate(self, uploads):
        self.load_tensors({"model.conv1.bias": torch.zeros(1)})


class RemembersKey(Idle):
    def remember(self, uploads):
        return {"server": {"x": torch.zeros(1)}}


class PredictsLogits(Idle):
    def predict(self, x):
        return self(x)

"""FixMatch in a federation: hard pseudo-labels above a fixed threshold, learnt on strong views."""

from methods.parts.labels_at_server import LabelsAtServer
from methods.parts.pseudo_labels import PseudoLabels
from methods.parts.server_momentum import ServerMomentum
from methods.parts.static_norms import StaticNorms


class FixMatch(LabelsAtServer, StaticNorms, ServerMomentum, PseudoLabels):
    """Federated FixMatch (Sohn et al., NeurIPS 2020), the baseline of (FL)2 (NeurIPS 2024, Table 2) and FedDB.

    FedDure's baseline of the same name takes a different step: see ``LocalSSL``.

    Clients train as described in ``PseudoLabels``; a server with labels trains as in ``LabelsAtServer``. Pseudo-labels
    made in every step are the ablation ``methods.ablations.fixmatch.EveryStep``.

    | hyperparameter | paper | released code | here |
    |---|---|---|---|
    | ``threshold`` | 0.95 | 0.95 ((FL)2, FedDB) | 0.95, inclusive |
    | ``lambda_u`` weight of the pseudo-labels | 1 | 1 | 1 |
    | when labels are made | every step | once per round ((FL)2, FedDB) | once per round |
    | loss is a mean over | all | selected ((FL)2, FedDB) | selected |
    | a client without any pseudo-label | not given | stays in the average, unchanged | as released |
    | ``lr``, ``momentum``, ``nesterov``, ``weight_decay`` | 0.03, 0.9, yes, 5e-4 | the same | the same |
    | ``clip_norm`` | not given | 1, before weight decay | 1 |
    | ``batch_size``, ``local_epochs`` | 32, 5 ((FL)2) | the same | the same |
    | ``server_batch_size``, ``server_epochs`` | 10, 5 ((FL)2) | the same | the same |
    | ``server_momentum``, ``lr_schedule`` | 0.5, cosine | 0.5, constant ((FL)2: never advanced) | 0.5, ``cosine`` |
    | ``reset_momentum`` of the clients | not given | kept over the rounds | false |
    """

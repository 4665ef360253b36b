"""Random draws: spread samples over clients, take a labelled pool, choose the clients that hold labels.

All of them draw from a legacy ``numpy.random.RandomState`` seeded by the caller: its streams are frozen across NumPy
versions and platforms, and the published partitions were made with it. The order of the calls is part of the contract.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import ArrayLike, NDArray

from datamodules.common.errors import DataError
from datamodules.partition.lists import Lists, Positions

Labels = NDArray[np.int64]
Rule = Literal["all_classes_closest", "index0", "random"]

MAX_ATTEMPTS = 10_000


def dirichlet(
    labels: ArrayLike,
    num_clients: int,
    beta: float,
    rng: RandomState,
    num_classes: int | None = None,
    min_size: int = 10,
    shuffle: bool = True,
) -> list[Positions]:
    """Spread samples with one Dirichlet draw over the clients per class, and a cap on the clients' sizes.

    For each class in ascending order: take its positions (shuffled or ascending), draw shares over the clients, set the
    share of every client that already holds ``len(labels) / num_clients`` samples or more to zero, renormalise, and cut
    the list at the truncated cumulative shares. A pass that leaves a client below ``min_size`` is discarded and drawn
    again from the generator's current state. Finally each client's list is shuffled, in client order.

    Source: released code. RSCFed, CBAFed and FedDure use the defaults; (FL)2 shuffles nothing; FedDB shuffles nothing
    and has ``min_size=1``. If the shares of all clients below the cap vanish in double precision (``beta`` below about
    1e-3), we follow the limit for small ``beta``: one of these clients, drawn uniformly, receives the whole class.

    Args:
        labels: class of every sample of the pool, int [N].
        num_clients: number of clients K.
        beta: concentration of the symmetric Dirichlet distribution.
        rng: legacy generator. Calls: per class shuffle, dirichlet; after the accepted pass the K final
            shuffles.
        num_classes: number of classes to loop over, by default all. Samples of later classes are left out (released
            code loops over 10 classes, whatever the data set).
        min_size: smallest client allowed.
        shuffle: shuffle each class's positions before its Dirichlet draw, and each client's final list, which otherwise
            is ordered class by class.

    Returns:
        K arrays of positions into ``labels``.

    Raises:
        DataError: impossible sizes, or ``min_size`` not met in 10 000 passes.
    """
    labels = check_labels(labels, num_clients)
    classes = _spread_classes(labels, num_clients, num_classes, min_size)
    concentration = np.full(num_clients, beta)
    capacity = len(labels) / num_clients
    for _ in range(MAX_ATTEMPTS):
        sizes = np.zeros(num_clients, dtype=np.int64)
        pieces: list[tuple[Positions, Positions]] = []
        for ascending in classes:
            members = ascending.copy()
            if shuffle:
                rng.shuffle(members)
            shares = rng.dirichlet(concentration)
            if len(members):
                cuts = _cuts(shares, sizes < capacity, len(members), rng)
                counts = np.diff(cuts, prepend=0, append=len(members))
                sizes += counts
                pieces.append((members, counts))
        if sizes.min() >= min_size:
            break
    else:
        raise DataError(
            f"no Dirichlet partition of {sum(map(len, classes))} samples over {num_clients} clients with beta={beta} "
            f"gave each of them min_size={min_size} in {MAX_ATTEMPTS} attempts: choose fewer clients, a larger beta, "
            "or a smaller data.min_size"
        )
    owners = np.concatenate([np.repeat(np.arange(num_clients), counts) for _, counts in pieces])
    order = np.argsort(owners, kind="stable")  # by client, and within a client class by class
    parts = np.split(np.concatenate([members for members, _ in pieces])[order], np.cumsum(sizes)[:-1])
    if shuffle:
        for part in parts:
            rng.shuffle(part)
    return parts


def pairs(
    labels: ArrayLike, num_clients: int, beta: float, rng: RandomState, num_classes: int | None = None
) -> list[Positions]:
    """Spread random shares of the pool over two clients each with ``dirichlet``, then cut all into equal lists.

    The positions, class by class, are shuffled and cut into G = ceil(K / 2) groups of int(2 N / K); the last one has
    the rest. ``dirichlet`` splits a group between two clients (the last of an odd K goes to one); it cuts each class in
    the group's order and is redrawn until both have half of their due, int(S / 4) of the group's S. The clients' lists
    are joined and cut again into K parts, of which the first N mod K have one more: two neighbours share their common
    samples, with the border moved to the middle.

    Source: released code of SAGE and ProxyFL, whose papers describe a Dirichlet distribution over clients. Two
    neighbours together have an almost even mix of classes, so clients differ much less than under ``dirichlet``.

    Args:
        labels: class of every sample of the pool, int [N].
        num_clients: number of clients K.
        beta: concentration of the symmetric Dirichlet distribution.
        rng: legacy generator. Calls: one shuffle of N elements; then for each group the calls of ``dirichlet``.
        num_classes: as in ``dirichlet``.

    Returns:
        K arrays of positions into ``labels``.

    Raises:
        DataError: impossible sizes, or no such draw in 10 000 passes.
    """
    labels = check_labels(labels, num_clients)
    classes = _spread_classes(labels, num_clients, num_classes, 1)
    order = np.concatenate(classes)
    rng.shuffle(order)
    size, last = int(2 / num_clients * len(order)), (num_clients - 1) // 2
    groups = np.split(order, [size * group for group in range(1, last + 1)])
    owned = []
    for number, group in enumerate(groups):
        clients = num_clients - 2 * last if number == last else 2
        half = int(0.5 * len(group) / clients)
        parts = dirichlet(labels[group], clients, beta, rng, len(classes), half, shuffle=False)
        owned += [group[part] for part in parts]
    return np.array_split(np.concatenate(owned), num_clients)


def dirichlet_per_client(
    labels: ArrayLike,
    num_clients: int,
    beta: float,
    rng: RandomState,
    num_classes: int | None = None,
    min_size: int = 10,
    shuffle: bool = True,
) -> list[Positions]:
    """Give every client the same number of samples, with class shares ``q ~ Dir(beta p)``, where p is the class prior.

    Source: the formula is FedDB's, as printed (also in Hsu et al., 2019); the following details are ours, since they
    are not published. The clients take floor(N / K) samples each, in turn; the remainder is left out. A client's
    classes are drawn from q. If a class has too few samples left, the client takes all of them and draws again among
    the other classes. If q gives these no weight, one of them, drawn from p, gives the rest, or all that it has: the
    limit for small ``beta``.

    Args:
        labels: class of every sample of the pool, int [N].
        num_clients: number of clients K.
        beta: concentration, the sum of the parameters of q's distribution.
        rng: legacy generator. Calls: one shuffle per class; per client one dirichlet and its multinomials; the K final
            shuffles.
        num_classes: as in ``dirichlet``.
        min_size: smallest client allowed.
        shuffle: shuffle each class's positions first, else clients take them in ascending order; and each client's
            final list, which otherwise is ordered class by class.

    Returns:
        K arrays of positions into ``labels``.

    Raises:
        DataError: impossible sizes.
    """
    labels = check_labels(labels, num_clients)
    classes = _spread_classes(labels, num_clients, num_classes, max(1, min_size))
    members = [positions for positions in classes if len(positions)]
    if shuffle:
        for positions in members:
            rng.shuffle(positions)
    sizes = np.array([len(positions) for positions in members])
    prior, left, parts = sizes / sizes.sum(), sizes.copy(), []
    for _ in range(num_clients):
        shares = rng.dirichlet(beta * prior)
        taken = _take(shares, prior, left, sizes.sum() // num_clients, rng)
        starts = sizes - left
        pieces = zip(members, starts, starts + taken, strict=True)
        parts.append(np.concatenate([positions[start:end] for positions, start, end in pieces]))
        left = left - taken
    if shuffle:
        for part in parts:
            rng.shuffle(part)
    return parts


def iid(
    labels: ArrayLike,
    num_clients: int,
    rng: RandomState,
    remainder: Literal["drop", "last"] = "drop",
    permutations: int = 1,
    stratified: bool = False,
) -> list[Positions]:
    """Spread samples evenly at random: permute all N, then cut into ``num_clients`` contiguous parts.

    Source: released code. (FL)2 and FedDB give each client floor(N / K) samples and drop the remainder;
    FedDure permutes twice in a row and gives each of the last N mod K clients one more.

    Args:
        labels: class of every sample of the pool, int [N].
        num_clients: number of clients K, at most N.
        rng: legacy generator, called for ``permutations`` shuffles of N elements.
        remainder: treatment of the N mod K remaining samples.
        permutations: number of consecutive permutations (one is equivalent in distribution).
        stratified: deal the permuted samples out class by class instead of cutting, so that a class's counts
            differ by at most one between clients.

    Returns:
        K arrays of positions into ``labels``.

    Raises:
        DataError: impossible sizes.
    """
    labels = check_labels(labels, num_clients)
    size, left = divmod(len(labels), num_clients)
    order = np.arange(len(labels))
    for _ in range(permutations):
        rng.shuffle(order)
    if remainder == "drop":
        order, left = order[: size * num_clients], 0
    if stratified:
        order = order[np.argsort(labels[order], kind="stable")]
        return [order[num_clients - 1 - k :: num_clients] for k in range(num_clients)]
    sizes = [size] * (num_clients - left) + [size + 1] * left
    return np.split(order, np.cumsum(sizes)[:-1])


def labelled_pool(
    labels: Labels, per_class: int, rng: RandomState | None = None, order: Literal["class", "dataset"] = "class"
) -> tuple[Positions, Positions]:
    """Take ``per_class`` samples of every class as the labelled pool; the rest is the unlabelled pool.

    Source: released code. (FL)2 and FedDB draw them: each class's ascending positions are shuffled with
    ``rng`` and the first ``per_class`` are taken. FedDure takes the first ones in the data set (no ``rng``).

    Args:
        labels: class of every sample, int [N].
        per_class: labelled samples per class.
        rng: legacy generator, called for one shuffle per class.
        order: order of the unlabelled pool: class by class in the order of the draw ((FL)2, FedDure), or ascending
            positions (FedDB). The labelled pool is always stored class by class.

    Returns:
        Labelled and unlabelled positions, int64 [C * per_class] and [N - C * per_class].

    Raises:
        DataError: a class has fewer samples than requested.
    """
    labelled, unlabelled = [], []
    for k, members in enumerate(class_members(labels)):
        if not 0 <= per_class <= len(members):
            raise DataError(f"cannot label {per_class} samples of class {k}: it has {len(members)}")
        if rng is not None:
            rng.shuffle(members)
        labelled.append(members[:per_class])
        unlabelled.append(members[per_class:])
    rest = np.concatenate(unlabelled)
    return np.concatenate(labelled), np.sort(rest) if order == "dataset" else rest


def pick_labelled(parts: Sequence[Positions], labels: Labels, rule: Rule, count: int, rng: RandomState) -> Positions:
    """Choose ``count`` clients to be labelled and return the order of clients that puts them first.

    The first choice is swapped with client 0, the second with the client then at 1, and so on; no other client moves.

    Args:
        parts: the K clients' positions.
        labels: class of every sample, int [N].
        rule: ``all_classes_closest``: clients with samples of all classes first, those of size closest to N / K first
            (fits RSCFed's three published partitions), then those missing the fewest classes, again the closest sizes
            first (CBAFed); ``index0``: as drawn; ``random``: uniformly with ``rng``.
        count: number of clients.
        rng: legacy generator of the rule ``random``.

    Returns:
        int64 [K]; the new client k is ``parts[order[k]]``.

    Raises:
        DataError: ``count`` is not between 0 and K.
    """
    if not 0 <= count <= len(parts):
        raise DataError(f"cannot choose {count} labelled clients out of {len(parts)}")
    if rule == "all_classes_closest":
        lists, num_classes = Lists.of(parts), int(labels.max()) + 1
        pairs_held = np.unique(lists.owners * num_classes + labels[lists.flat])  # a number per client and class it has
        classes_held = np.bincount(pairs_held // num_classes, minlength=len(parts))
        distance = np.abs(lists.lengths - len(labels) / len(parts))
        chosen = np.lexsort(np.array([distance, np.negative(classes_held)]))
    elif rule == "index0":
        chosen = np.arange(len(parts))
    else:
        chosen = rng.permutation(len(parts))
    order, place_of = np.arange(len(parts)), np.arange(len(parts))  # inverse permutations
    for place, client in enumerate(chosen[:count]):
        displaced, vacated = order[place], place_of[client]
        order[place], order[vacated] = client, displaced
        place_of[client], place_of[displaced] = place, vacated
    return order


def check_labels(labels: ArrayLike, num_clients: int = 1) -> Labels:
    """Return labels as int64 [N]; raise `DataError` if they are too few for the clients."""
    array = np.asarray(labels, dtype=np.int64)
    if not 1 <= num_clients <= len(array):
        raise DataError(f"cannot spread {len(array)} samples over {num_clients} clients: choose fewer clients")
    return array


def class_members(labels: Labels, num_classes: int | None = None) -> list[Positions]:
    """Return each class's ascending positions, for ``num_classes`` classes (default: up to the largest)."""
    return [np.flatnonzero(labels == k) for k in range(int(labels.max()) + 1 if num_classes is None else num_classes)]


def _spread_classes(labels: Labels, num_clients: int, num_classes: int | None, min_size: int) -> list[Positions]:
    """Return the classes' ascending positions.

    Raises:
        DataError: there are too few positions for the clients.
    """
    classes = class_members(labels, num_classes)
    available = sum(map(len, classes))
    if available < max(1, min_size * num_clients):
        what = f"min_size={min_size} or more of {available} samples"
        raise DataError(f"cannot give each of {num_clients} clients {what}: choose fewer clients or a smaller min_size")
    return classes


def _cuts(shares: NDArray[Any], below_cap: NDArray[np.bool_], size: int, rng: RandomState) -> Positions:
    """Turn Dirichlet shares into the K - 1 cut points of a class of ``size`` > 0 samples.

    Shares in float32 are those that FedDB's released code drew with torch, in the record of it that a test compares
    with; they are normalised and summed in torch's order.
    """
    shares = np.where(below_cap, shares, 0)
    if shares.dtype == np.float32 and shares.sum() > 0:
        narrow = torch.from_numpy(shares)
        cuts: Positions = (torch.cumsum(narrow / narrow.sum(), 0) * size).long().numpy()[:-1]
        return cuts
    total = shares.sum()
    if total > 0:
        shares = shares / total
    else:  # all shares underflowed: to 0, or to NaN in the generator
        shares = np.zeros(len(shares))
        shares[rng.choice(np.flatnonzero(below_cap))] = 1
    return (np.cumsum(shares) * size).astype(np.int64)[:-1]


def _take(shares: NDArray[Any], prior: NDArray[Any], left: Positions, count: int, rng: RandomState) -> Positions:
    """Draw the class counts of ``count`` samples of a client, int64 [C], at most ``left`` per class.

    See ``dirichlet_per_client``.
    """
    taken = np.zeros_like(left)
    while missing := count - taken.sum():
        has_some = taken < left
        wanted = np.where(has_some, shares, 0)
        if not wanted.sum() > 0:  # 0, or NaN where all shares have underflowed
            wanted = np.zeros(len(left))
            weights = np.where(has_some, prior, 0) / prior[has_some].sum()
            wanted[rng.choice(len(left), p=weights)] = 1
        taken = np.minimum(taken + rng.multinomial(missing, wanted / wanted.sum()), left)
    return taken

"""Work queues of a GPU: streams that share one wait for each other."""

import os


def enough_queues() -> None:
    """Ask CUDA for its most queues, 32 instead of 8, before it starts: more than eight slots would share theirs.

    ``CUDA_DEVICE_MAX_CONNECTIONS`` in the environment decides where it is set.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

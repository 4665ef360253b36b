"""Work queues of a GPU: streams that share a queue wait for each other."""

import os


def enough_queues() -> None:
    """Ask CUDA, before it starts, for 32 queues (its maximum) instead of 8: more than eight slots would have to share.

    ``CUDA_DEVICE_MAX_CONNECTIONS`` takes precedence if it is set in the environment.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

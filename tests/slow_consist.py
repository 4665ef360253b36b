"""A method whose rounds last long enough to be met by a signal, in a module that processes can import."""

import time

from methods.fed_consist import FedConsist


class SlowConsist(FedConsist):
    """Every visit waits for a moment."""

    def on_train_start(self) -> None:
        """Wait."""
        super().on_train_start()
        time.sleep(0.02)

"""Signals that ask a program to stop."""

import os
import pty
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmark.launch.signals import SIGNALS, STOPPED, check_stopped, stoppable
from datamodules.common.errors import Stopped


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_stops_and_the_next_ones_leave_it_in_peace(number, capfd):
    """Beside ``capfd``, since SIGHUP takes the output off the terminal."""
    before = [signal.getsignal(one) for one in SIGNALS]
    with pytest.raises(Stopped, match=f"stopped by {number.name}") as stopped, stoppable():
        try:
            os.kill(os.getpid(), number)
        finally:
            for one in SIGNALS:
                os.kill(os.getpid(), one)
    assert stopped.value.signal == number and not isinstance(stopped.value, (Exception, SystemExit))
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_a_signal_that_a_destructor_has_swallowed_is_raised_once_more(monkeypatch):
    class Swallows:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    swallowed = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    with stoppable():
        one = Swallows()
        del one
        assert len(swallowed) == 1
        with pytest.raises(Stopped, match="SIGTERM"):
            check_stopped()
    check_stopped()


def test_a_signal_that_is_ignored_stays_ignored():
    """``nohup`` ignores SIGHUP for the program that it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
        check_stopped()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.timeout(60)
def test_a_terminal_that_is_closed_stops_and_may_still_be_written_to(tmp_path):
    child, terminal = pty.fork()
    if child == 0:
        try:
            with stoppable():
                os.write(1, b"begun")
                while True:
                    time.sleep(0.1)  # a signal that comes just before a sleep does not shorten it
        except Stopped as stopped:
            os.write(1, b"to the terminal")
            os.write(2, b"to its error stream")
            (tmp_path / "saved").write_text(str(stopped))
        finally:
            os._exit(STOPPED)
    assert os.read(terminal, 100) == b"begun"
    os.close(terminal)
    os.waitpid(child, 0)
    assert (tmp_path / "saved").read_text() == "stopped by SIGHUP"


def test_inside_another_one_or_in_another_thread_it_changes_nothing():
    def handlers():
        return [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]

    def inside():
        with stoppable(signal.SIGINT):
            return handlers()

    with ThreadPoolExecutor() as threads:
        assert threads.submit(inside).result() == handlers()
    with stoppable():
        outside = handlers()
        assert inside() == handlers() == outside

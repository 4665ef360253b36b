import threading

from benchmark.runs.background import repeatedly


def test_work_goes_on_for_as_long_as_the_context():
    calls, third = [], threading.Event()

    def work():
        calls.append(threading.current_thread())
        if len(calls) == 3:
            third.set()

    with repeatedly(work, 0.001):
        assert third.wait(10)
    (thread,) = set(calls)
    assert not thread.is_alive() and thread is not threading.current_thread()


def test_no_time_no_work():
    calls = []
    with repeatedly(lambda: calls.append(1), 60.0):
        pass
    assert not calls

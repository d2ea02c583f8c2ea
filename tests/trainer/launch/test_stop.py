"""What the launcher does when it is told to stop, by real signals."""

import os
import signal

import pytest

from trainer.launch.stop import LauncherStopped, Stop, rank_seconds

TOLD = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP]


@pytest.fixture
def stop():
    before = {number: signal.getsignal(number) for number in TOLD}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    heard = Stop()
    heard.listen()
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_a_second_one_changes_nothing(stop, number):
    assert stop.seconds_left(30) == float("inf")
    with pytest.raises(LauncherStopped):
        os.kill(os.getpid(), number)
    asked = stop.asked_at
    for further in TOLD:
        os.kill(os.getpid(), further)
    assert signal.Signals(number).name in stop.asked_by
    assert stop.asked_at == asked and 28 < stop.seconds_left(30) <= 30


def test_what_was_ignored_stays_ignored(stop):
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stop.listen()
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert stop.asked_at is None


@pytest.mark.parametrize(("grace_s", "ranks_s"), [(20, 13), (120, 105)])
def test_the_ranks_have_the_grace_period_but_for_a_margin(grace_s, ranks_s):
    assert rank_seconds(grace_s) == ranks_s

"""The timeline of both queues, with hand-worked numbers."""

from __future__ import annotations

import pytest

from stratlab_spec.step_time.timeline import LATENCY_S, MOST_AHEAD, WAIT_S, Span, play


def test_device_bound_steps_take_the_device_time() -> None:
    found = play([Span("a", "forward", 0.010, 10, 0.001), Span("b", "backward", 0.020, 10, 0.001)])
    assert found.step_s == pytest.approx(0.030, abs=2e-5)
    assert found.idle_s == pytest.approx(0.0, abs=2e-5)


def test_host_bound_steps_take_the_host_time() -> None:
    found = play([Span("a", "forward", 0.001, 10, 0.010), Span("b", "backward", 0.001, 10, 0.020)])
    assert found.step_s == pytest.approx(0.030, abs=2e-4)
    assert found.idle_s == pytest.approx(0.028, abs=3e-4)


def test_a_host_that_runs_ahead_hides_a_slow_span_later() -> None:
    """Device 30 ms in `a` hides the host's 20 ms of `b`."""
    found = play([Span("a", "forward", 0.030, 10, 0.001), Span("b", "backward", 0.001, 10, 0.020)])
    assert found.step_s == pytest.approx(0.031, abs=1e-4)


def test_a_wait_ends_the_lead() -> None:
    """The host waits after `a`, so its 20 ms of `b` follow the device's 30 ms."""
    spans = [Span("a", "forward", 0.030, 10, 0.001, waits=1), Span("b", "backward", 0.001, 10, 0.020)]
    # a wait lies in the middle of its span: half of the device's work comes after it, hidden by b's host
    assert play(spans).step_s == pytest.approx(0.015 + WAIT_S + 0.0205 + 0.0005, rel=0.05)


def test_the_host_is_at_most_a_thousand_kernels_ahead() -> None:
    """The host leaves `a` after 80 of its 100 ms, and needs 80 ms for `c`."""
    few = [
        Span("a", "forward", 0.1, 10, 0.0),
        Span("b", "forward", 0.0, 1, 0.0),
        Span("c", "x", 0.0, 1, 0.08),
    ]
    many = [Span("a", "forward", 0.1, 5 * MOST_AHEAD, 0.0), *few[1:]]
    assert play(few).step_s == pytest.approx(0.1, rel=0.01)
    assert play(many).step_s == pytest.approx(0.16, rel=0.01)


def test_a_gather_that_fits_beside_the_previous_span_costs_nothing() -> None:
    spans = [Span("a", "forward", 0.010, 1, 0.0), Span("b", "forward", 0.010, 1, 0.0, needs_s=0.008)]
    assert play(spans).step_s == pytest.approx(0.020, abs=1e-4)
    longer = [spans[0], Span("b", "forward", 0.010, 1, 0.0, needs_s=0.015)]
    found = play(longer)
    assert found.step_s == pytest.approx(0.025, abs=1e-4)
    assert found.exposed_s == pytest.approx(0.005, abs=1e-4)


def test_the_last_reduction_is_exposed() -> None:
    spans = [
        Span("a", "backward", 0.010, 1, 0.0, sends_s=0.004),
        Span("b", "backward", 0.010, 1, 0.0, sends_s=0.004),
        Span("optimizer", "optimizer", 0.001, 1, 0.0, joins=True),
    ]
    found = play(spans)
    assert found.step_s == pytest.approx(0.025, abs=1e-4)
    assert found.exposed_s == pytest.approx(0.004, abs=1e-4)
    assert found.collective_s == pytest.approx(0.008)


def test_a_lone_kernel_runs_after_its_launch() -> None:
    assert play([Span("a", "forward", 0.0, 1, 0.001)]).step_s == pytest.approx(0.001 + LATENCY_S, rel=0.01)

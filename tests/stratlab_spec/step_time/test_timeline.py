"""The timeline of both queues, with hand-worked numbers."""

from __future__ import annotations

import pytest

from stratlab_spec.step_time.timeline import LATENCY_S, MOST_AHEAD, WAIT_S, StepSpan, add_up, play


def test_device_bound_steps_take_the_device_time() -> None:
    found = play([StepSpan("a", "forward", 0.010, 10, 0.001), StepSpan("b", "backward", 0.020, 10, 0.001)])
    assert found.step_s == pytest.approx(0.030, abs=2e-5)
    assert found.idle_s == pytest.approx(0.0, abs=2e-5)


def test_host_bound_steps_take_the_host_time() -> None:
    found = play([StepSpan("a", "forward", 0.001, 10, 0.010), StepSpan("b", "backward", 0.001, 10, 0.020)])
    assert found.step_s == pytest.approx(0.030, abs=2e-4)
    assert found.idle_s == pytest.approx(0.028, abs=3e-4)


def test_a_host_that_runs_ahead_hides_a_slow_span_later() -> None:
    """Device 30 ms in `a` hides the host's 20 ms of `b`."""
    found = play([StepSpan("a", "forward", 0.030, 10, 0.001), StepSpan("b", "backward", 0.001, 10, 0.020)])
    assert found.step_s == pytest.approx(0.031, abs=1e-4)


def test_a_wait_ends_the_lead() -> None:
    """The host waits after `a`, so its 20 ms of `b` follow the device's 30 ms."""
    spans = [StepSpan("a", "forward", 0.030, 10, 0.001, waits=1), StepSpan("b", "backward", 0.001, 10, 0.020)]
    # a wait lies in the middle of its span: half of the device's work comes after it, hidden by b's host
    assert play(spans).step_s == pytest.approx(0.015 + WAIT_S + 0.0205 + 0.0005, rel=0.05)


def test_the_host_is_at_most_a_thousand_kernels_ahead() -> None:
    """The host leaves `a` after 80 of its 100 ms, and needs 80 ms for `c`."""
    few = [
        StepSpan("a", "forward", 0.1, 10, 0.0),
        StepSpan("b", "forward", 0.0, 1, 0.0),
        StepSpan("c", "x", 0.0, 1, 0.08),
    ]
    many = [StepSpan("a", "forward", 0.1, 5 * MOST_AHEAD, 0.0), *few[1:]]
    assert play(few).step_s == pytest.approx(0.1, rel=0.01)
    assert play(many).step_s == pytest.approx(0.16, rel=0.01)


def test_a_gather_that_fits_beside_the_previous_span_costs_nothing() -> None:
    spans = [StepSpan("a", "forward", 0.010, 1, 0.0), StepSpan("b", "forward", 0.010, 1, 0.0, needs_s=0.008)]
    assert play(spans).step_s == pytest.approx(0.020, abs=1e-4)
    longer = [spans[0], StepSpan("b", "forward", 0.010, 1, 0.0, needs_s=0.015)]
    found = play(longer)
    assert found.step_s == pytest.approx(0.025, abs=1e-4)
    assert found.exposed_s == pytest.approx(0.005, abs=1e-4)


def test_the_last_reduction_is_exposed() -> None:
    spans = [
        StepSpan("a", "backward", 0.010, 1, 0.0, sends_s=0.004),
        StepSpan("b", "backward", 0.010, 1, 0.0, sends_s=0.004),
        StepSpan("optimizer", "optimizer", 0.001, 1, 0.0, joins=True),
    ]
    found = play(spans)
    assert found.step_s == pytest.approx(0.025, abs=1e-4)
    assert found.exposed_s == pytest.approx(0.004, abs=1e-4)
    assert found.collective_s == pytest.approx(0.008)


def test_a_lone_kernel_runs_after_its_launch() -> None:
    assert play([StepSpan("a", "forward", 0.0, 1, 0.001)]).step_s == pytest.approx(
        0.001 + LATENCY_S, rel=0.01
    )


@pytest.mark.parametrize(("overlaps", "ms"), [(False, 74.0), (True, 54.0)])
def test_on_a_cpu_one_queue_does_all_and_only_ddp_sends_meanwhile(overlaps: bool, ms: float) -> None:
    """10 + 2 ms, 20 ms sent; 5 gathered, 30 + 4; the update joins: 3 ms. Beside the next span the 20 are hidden."""
    spans = [
        StepSpan("a", "backward", 0.010, 10, 0.002, sends_s=0.020),
        StepSpan("b", "backward", 0.030, 10, 0.004, needs_s=0.005),
        StepSpan("update", "optimizer", 0.003, 1, 0.0, joins=True),
    ]
    found = add_up(spans, overlaps)
    assert found.step_s == pytest.approx(ms / 1e3)
    assert found.device_s == pytest.approx(0.049)
    assert found.exposed_s == pytest.approx(found.step_s - 0.049)
    assert found.phases["optimizer"] == pytest.approx(0.003)


def test_an_update_waits_for_what_is_still_sent() -> None:
    """Sent from 1 to 101 ms, the update joins and takes 3."""
    spans = [
        StepSpan("a", "backward", 0.001, 1, 0.0, sends_s=0.100),
        StepSpan("b", "backward", 0.010, 1, 0.0),
        StepSpan("update", "optimizer", 0.003, 1, 0.0, joins=True),
    ]
    assert add_up(spans, overlaps=True).step_s == pytest.approx(0.104)

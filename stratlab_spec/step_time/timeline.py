"""Two queues: the host issues kernels in order, the device runs them; a step is what the slower one needs.

    host    ▓▓ start ▓▓▓ first ▓▓▓ second ▓▓▓ ...  ──wait──  ▓▓ optimizer
    device     ▓▓▓▓ start ▓▓▓▓▓▓ first ▓▓▓▓▓▓ second ...      ▓▓ optimizer        the host may be 1,000 kernels ahead
    network            ▓▓▓ collective of `first` ▓▓▓                              beside the device's next kernels

A step is a list of spans, each with the seconds of both queues. Inside a span both are spread evenly. So the device
is idle where the host is slower, without a rule of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

LATENCY_S = 4e-6
"""From a launch to the kernel's begin."""
WAIT_S = 15e-6
"""Of the host, after the device has finished."""
MOST_AHEAD = 1000
"""Kernels that the host may have issued before they run."""
STEPS = 3
"""The last one counts: the first ones fill the queues."""


@dataclass(frozen=True)
class StepSpan:
    """A part of a step."""

    name: str
    phase: str
    device_s: float
    kernels: int
    host_s: float
    waits: int = 0
    """Times that the host waits for the device, evenly spread."""
    needs_s: float = 0.0
    """Of a collective that must end before this span begins on the device (gathered weights); issued when the previous
    span begins."""
    sends_s: float = 0.0
    """Of a collective that begins when this span has ended on the device."""
    joins: bool = False
    """All collectives must have ended before it begins."""


@dataclass
class StepTimeline:
    """Seconds of a step."""

    step_s: float = 0.0
    device_s: float = 0.0
    """The device computes."""
    exposed_s: float = 0.0
    """The device waits for collectives."""
    idle_s: float = 0.0
    """The device waits for the host."""
    collective_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds of the device's time in it."""

    def extend(self, before: StepTimeline, times: int) -> StepTimeline:
        """Return a longer step: as much as this one has more than `before` is added so many times."""

        def more(long: float, short: float) -> float:
            return long + times * max(0.0, long - short)

        return StepTimeline(
            more(self.step_s, before.step_s),
            more(self.device_s, before.device_s),
            more(self.exposed_s, before.exposed_s),
            more(self.idle_s, before.idle_s),
            more(self.collective_s, before.collective_s),
            {name: more(seconds, before.phases[name]) for name, seconds in self.phases.items()},
        )


def add_up(spans: Sequence[StepSpan], overlaps: bool) -> StepTimeline:
    """Return the time of a step where one queue does the host's work and the kernels, and waits for collectives.

    Args:
        overlaps: collectives after a span run beside the next ones, as DDP's do; else the queue waits for them too.
    """
    found = StepTimeline()
    clock = network = 0.0
    for span in spans:
        began = clock
        if span.joins:
            clock = max(clock, network)
        clock += span.needs_s + span.host_s + span.device_s
        found.device_s += span.host_s + span.device_s
        if overlaps and span.sends_s:
            network = max(network, clock) + span.sends_s
        else:
            clock += span.sends_s
        found.collective_s += span.needs_s + span.sends_s
        found.phases[span.phase] = found.phases.get(span.phase, 0.0) + clock - began
    found.step_s = max(clock, network)
    found.exposed_s = found.step_s - found.device_s
    return found


def _shorten(queue: deque[tuple[int, float, float]], kernels: int) -> float:
    """Take this many kernels, at most the first entry's, from the queue; return when the last of them ends."""
    count, start, end = queue.popleft()
    if count <= kernels:
        return end
    reached = start + (end - start) * kernels / count
    queue.appendleft((count - kernels, reached, end))
    return reached


def play(spans: Sequence[StepSpan]) -> StepTimeline:
    """Return the time of a step in a row of equal ones."""
    host = device = network = 0.0
    queue: deque[tuple[int, float, float]] = deque()  # kernels, begin and end on the device
    ahead = 0
    found = StepTimeline()
    for _ in range(STEPS):
        began = max(host, device, network)
        found = StepTimeline()
        gathered = max(network, device) + spans[0].needs_s
        for span, following in zip(spans, [*spans[1:], None], strict=True):
            ready = max(gathered if span.needs_s else 0.0, network if span.joins else 0.0)
            if ready > device:
                found.exposed_s += ready - max(device, min(ready, host))
            previous = device
            if following is not None and following.needs_s:  # issued one span ahead
                network = gathered = max(network, device, ready) + following.needs_s
            parts = span.waits + 1
            for part in range(parts):
                begin = host
                host += span.host_s / parts
                share, kernels = span.device_s / parts, max(1, span.kernels // parts)
                start = max(device, begin + LATENCY_S, ready)
                end = max(start + share, host + LATENCY_S + share / kernels)
                found.idle_s += max(0.0, end - max(device, ready) - share)
                device = end
                queue.append((kernels, start, end))
                ahead += kernels
                while ahead > MOST_AHEAD:
                    host = max(host, _shorten(queue, ahead - MOST_AHEAD))
                    ahead = sum(row[0] for row in queue)
                if part < span.waits:
                    host = max(host, device) + WAIT_S
            found.device_s += span.device_s
            found.collective_s += span.needs_s + span.sends_s
            if span.sends_s:
                network = max(network, device) + span.sends_s
            found.phases[span.phase] = found.phases.get(span.phase, 0.0) + device - previous
        end = max(host, device, network)
        found.exposed_s += max(0.0, network - max(device, host))
        found.step_s = end - began
        device = max(device, network)
    return found

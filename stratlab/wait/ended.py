"""Waits for the end of a run: what the files say, or what becomes of the resource."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stratlab.run_directory.outcome import Fingerprint, Outcome, fingerprint, look

if TYPE_CHECKING:
    from stratlab.wait.resource import Resource

QUIET_S = 120.0


def wait_for_run(
    run_dir: Path,
    *,
    resource: Resource | None = None,
    deadline_s: float | None = None,
    poll_s: float = 1.0,
    quiet_s: float = QUIET_S,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Returns when the run in `run_dir` has ended, or when `deadline_s` have passed.

    By its files a run has ended when its last attempt ended with a code that ends the run (0, or below 128), or
    when its traces are complete and its summary is there. After another code somebody may try again: the operator,
    until `resource` is Succeeded, Failed or deleted. Where there is no resource to ask, or none of that name, a
    silence of `quiet_s` is the end. `say` gets a sentence whenever what is seen has changed.
    """
    started = time.monotonic()
    changed: float = started
    seen: Fingerprint | None = None
    told = ""
    while True:
        for sentence in resource.update() if resource else []:
            say(sentence)
        now = time.monotonic()
        found = fingerprint(run_dir)
        if found != seen:
            changed, seen = now, found
        silence_s = now - changed
        outcome = look(run_dir, quiet=silence_s >= quiet_s and not (resource and resource.decides))
        if outcome.ended:
            return outcome
        if resource and (end := resource.end(silence_s)):
            code = 0 if resource.has_succeeded else outcome.exit_code  # NFS may not show the files yet
            return Outcome(True, f"{end}; {outcome.sentence}", code)
        if resource and resource.is_absent and found and silence_s >= quiet_s:
            return Outcome(
                True, f"{outcome.sentence}, but nothing is written and there is no resource of its name"
            )
        if deadline_s is not None and now - started >= deadline_s:
            return outcome
        if outcome.sentence != told:
            told = outcome.sentence
            say(told)
        time.sleep(poll_s)

"""F27: a second start of the same run, while the first one trains."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.faults.pods import open_pods


def test_the_second_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    settings = {"TRAINER_STEPS": "1000000", "TRAINER_CHECKPOINT_EVERY": "0"}
    with open_pods(tmp_path, 1, 1, settings) as first, open_pods(tmp_path, 1, 1, settings) as second:
        first.start()
        first.wait_for_step(5)
        second.start()
        assert second.finish(limit_s=90) == 2, second.said()
        before = max(first.losses())
        first.wait_for_step(before + 5)
        first.send(0, signal.SIGTERM)
        assert first.starts() == [0]

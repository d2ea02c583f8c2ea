"""What other processes took of a machine, by hand: two machines, one of which tells nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.measuring.hardware import TICKS_PER_S, MachineLoad, read_busy_s, sum_up_load


def rank(host: str, own_s: float, busy_s: float | None, load: float = 1.0) -> dict[str, Any]:
    machine = {"cores": 4.0, "load_average": load, "seconds": 10.0, "own_cpu_s": own_s, "busy_cpu_s": busy_s}
    return {"host": host, "machine": machine}


def test_what_ranks_of_one_machine_took_is_theirs() -> None:
    busy = [rank("a", 10.0, 24.0, 3.5), rank("a", 6.0, 24.5), rank("b", 9.0, 10.0, 2.0)]
    assert sum_up_load(busy) == {"load_average": 3.5, "other_cpu_pct": pytest.approx(20.0)}
    assert sum_up_load([rank("a", 10.0, 9.0)])["other_cpu_pct"] == 0.0, "two clocks that are read one by one"
    assert sum_up_load([rank("a", 1.0, None)])["other_cpu_pct"] is None


def test_waiting_is_no_work(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(f"cpu  {TICKS_PER_S} 1 {2 * TICKS_PER_S} 900 900 3 4 7 0 0\ncpu0 1 1 1 1 1 1 1\n")
    assert read_busy_s(stat) == pytest.approx(3.0 + 8 / TICKS_PER_S)
    for text in ("", "cpu a b\n"):
        stat.write_text(text)
        load = MachineLoad(stat).describe()
        assert load["busy_cpu_s"] is None and load["seconds"] is not None

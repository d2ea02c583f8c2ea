"""Read back by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.launch.tensorboard import build_first_record, build_record


def read(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Tag -> (wall time, step, value) of all its points."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {
        tag: [(point.wall_time, point.step, point.value) for point in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_tensorboards_reader_returns_what_was_written(tmp_path: Path) -> None:
    values = [0.0, -1.5, 1e-30, 2.31, 16777217.0, 3e38, 1e39, -1e39]
    tags = {f"system/rank{number}/größe": value for number, value in enumerate(values)}
    steps = (0, 1, 127, 128, 300, 2**31)
    content = build_first_record(1.7e9) + b"".join(build_record(1.7e9 + s, s, tags) for s in steps)
    (tmp_path / "events.out.tfevents.1700000000.here").write_bytes(content)
    found = read(tmp_path)
    with np.errstate(over="ignore"):
        assert found == {
            tag: [(1.7e9 + s, s, float(np.float32(value))) for s in steps] for tag, value in tags.items()
        }


@pytest.mark.parametrize("place", [12, -1])
def test_a_changed_byte_is_seen_by_the_reader(tmp_path: Path, place: int) -> None:
    content = bytearray(build_first_record(1.7e9) + build_record(1.7e9, 1, {"loss": 2.0}))
    content[place] ^= 1
    (tmp_path / "events.out.tfevents.1700000000.here").write_bytes(content)
    assert read(tmp_path) != {"loss": [(1.7e9, 1, 2.0)]}

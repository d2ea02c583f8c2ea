"""A checkpoint is read by all ranks before it is taken: each its share, and whoever finds damage is heard."""

from __future__ import annotations

import json
import os

import pytest

from tests.codes import find_codes
from tests.ranks import run_ranks
from tests.trainer.checkpoint.stand_in import build, folder_of, read_lines


def save(results) -> None:
    *_, step_until = build(results)
    step_until(4)


@pytest.mark.parametrize("name", ["engine/rank0.pt", "ranks/rank_00001.pt"])
def test_damage_in_any_rank_s_share_is_found_by_all(tmp_path, name):
    run_ranks(lambda: save(tmp_path), 2)
    file = folder_of(tmp_path).step(4) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    def go_on() -> None:
        *_, attempt, _ = build(tmp_path)
        assert attempt.from_step == 2 and name in attempt.skipped[0]

    run_ranks(go_on, 2)
    (event,) = [line for line in read_lines(tmp_path) if line.get("name") == "checkpoint skipped"]
    assert find_codes(event["text"]) == ["SL-file-changed", "SL-checkpoint-broken"] and event["attempt"] == 2


def test_each_file_is_read_by_one_rank(tmp_path):
    run_ranks(lambda: save(tmp_path), 2)

    def go_on() -> None:
        from trainer.checkpoint import folder as manifest

        compare, seen = manifest._compare, []

        def watch(folder, name, promised):
            seen.append(name)
            return compare(folder, name, promised)

        manifest._compare = watch
        *_, attempt, _ = build(tmp_path)
        assert attempt.from_step == 4
        (tmp_path / f"seen{os.environ['RANK']}").write_text(json.dumps(seen))

    run_ranks(go_on, 2)
    both = [json.loads((tmp_path / f"seen{rank}").read_text()) for rank in (0, 1)]
    assert all(both) and sorted(both[0] + both[1]) == [
        *("engine/rank0.pt", "engine/rank1.pt", "ranks/rank_00000.pt", "ranks/rank_00001.pt", "state.json"),
    ]

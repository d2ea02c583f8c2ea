"""The check in two pods, each lack planted alone; and a rank that hangs before it can say anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.test_network import ADDRESSES, NAMES, enter, network
from tests.trainer.environment.planted import HANGS, SHIFTED, mounted, plant_in_ranks, slow_down
from tests.trainer.environment.ranks.test_laptop import check, only
from tests.trainer.environment.ranks.test_pods import checked, in_second

__all__ = ["network"]


def test_no_shared_memory(tmp_path: Path) -> None:
    with (
        mounted(Path("/dev/shm"), "1m") as words,
        checked(tmp_path, prefix=in_second(*words)) as (pods, code, found),
    ):
        assert (code, len(found)) == (1, 1), pods.said()
        assert (
            found[0][0] == "shared memory" and "pod try-worker-1: /dev/shm cannot be written" in found[0][1]
        )


def test_a_full_volume(tmp_path: Path) -> None:
    """Both pods see the same one."""
    results = tmp_path / "results"
    results.mkdir()
    with (
        mounted(results, "8m") as words,
        checked(tmp_path, prefix=lambda index: words) as (pods, code, found),
    ):
        assert code == 1, pods.said()
        assert [subject for subject, _ in found] == ["results volume"] * 2, found
        assert all("cannot be written: No space left on device" in seen for _, seen in found)


def test_a_wrong_clock(tmp_path: Path) -> None:
    site = plant_in_ranks(tmp_path / "site", "0", SHIFTED.format(seconds=-90))
    with checked(tmp_path, site) as (pods, code, found):
        assert code == 1, pods.said()
        assert [subject for subject, _ in found] == ["clock", "clock"], found
        assert "pod try-worker-0: its clock is 90.0 s behind the results volume's" in found[0][1], (
            "whose it is"
        )
        assert "its clock is 90.0 s before rank 0" in found[1][1]


def test_a_missing_device(tmp_path: Path) -> None:
    prefix = in_second("env", "TRAINER_ACCELERATOR=nvidia.com/gpu")
    with checked(tmp_path, prefix=prefix) as (pods, code, found):
        assert (code, len(found)) == (1, 1), pods.said()
        assert found[0][0] == "devices" and "pod try-worker-1: run.accelerator=nvidia.com/gpu" in found[0][1]


@pytest.mark.parametrize("slow", [False, True])
def test_a_slow_link(tmp_path: Path, network, slow: bool) -> None:
    """Two network namespaces, one cable; once as it is, once at 20 Mbit/s in one direction."""
    if slow:
        slow_down(NAMES[1], "cable1")
    with checked(tmp_path, prefix=enter, host=ADDRESSES[0]) as (pods, code, found):
        assert (code, [subject for subject, _ in found]) == ((1, ["all-reduce"]) if slow else (0, [])), (
            pods.said()
        )
        if slow:
            assert "expected at least 0.02 GB/s (less than a fifth of Gigabit Ethernet)" in found[0][1]


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    """Before it has asked for the time; the other one waits for it, and is not named."""
    planted = plant_in_ranks(tmp_path / "site", "1", HANGS)
    code, said = check(tmp_path, "--limit-s", "10", python=sys.executable, **planted)
    assert (code, *only(said)) == (1, "ranks", "rank 1 said nothing, within 10 s")

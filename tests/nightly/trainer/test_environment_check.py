"""The check in two pods, each lack planted alone; and a rank that hangs before it can say anything."""

import sys
from pathlib import Path

import pytest

from tests.faults.test_network import ADDRESSES, NAMES, enter, network
from tests.trainer.environment.planted import HANGS, SHIFTED, mounted, plant_in_ranks, slow_down
from tests.trainer.environment.ranks.test_pods import check, checked, in_second, only

__all__ = ["network"]
SECOND = "pod try-worker-1"


def expect(folder: Path, settings: dict[str, str] | None = None, **options) -> list[tuple[str, str]]:
    """(subject, what was seen) of all that is not ok, of a check that has found something."""
    with checked(folder, settings or {}, **options) as (pods, code, found):
        assert code == 1, pods.said()
        return found


def test_no_shared_memory_and_a_missing_device_in_the_second_pod(tmp_path: Path) -> None:
    device = in_second("env", "TRAINER_ACCELERATOR=nvidia.com/gpu")
    with mounted(Path("/dev/shm"), "1m") as words:
        ways = (
            ("shared memory", "/dev/shm", in_second(*words)),
            ("devices", "run.accelerator=nvidia.com/gpu", device),
        )
        for subject, named, prefix in ways:
            (tmp_path / subject).mkdir()
            ((found, seen),) = expect(tmp_path / subject, prefix=prefix)
            assert found == subject and SECOND in seen and named in seen


def test_a_full_volume(tmp_path: Path) -> None:
    """Both pods see the same one."""
    results = tmp_path / "results"
    results.mkdir()
    with mounted(results, "8m") as words:
        found = expect(tmp_path, prefix=lambda index: words)
    assert [subject for subject, _ in found] == ["results volume"] * 2, found
    assert all("No space left on device" in seen for _, seen in found)


def test_a_wrong_clock(tmp_path: Path) -> None:
    found = expect(tmp_path, plant_in_ranks(tmp_path / "site", "0", SHIFTED.format(seconds=-90)))
    assert [subject for subject, _ in found] == ["clock", "clock"], found
    assert "pod try-worker-0" in found[0][1] and all("90.0 s" in seen for _, seen in found), "whose it is"


@pytest.mark.usefixtures("network")
def test_a_slow_link(tmp_path: Path) -> None:
    """Two network namespaces, one cable; once as it is, once at 20 Mbit/s in one direction."""
    for slow, wanted in ((False, (0, [])), (True, (1, ["all-reduce"]))):
        if slow:
            slow_down(NAMES[1], "cable1")
        (folder := tmp_path / str(slow)).mkdir()
        with checked(folder, prefix=enter, host=ADDRESSES[0]) as (pods, code, found):
            assert (code, [subject for subject, _ in found]) == wanted, pods.said()


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    """Before it has asked for the time; the other one waits for it, and is not named."""
    planted = plant_in_ranks(tmp_path / "site", "1", HANGS)
    code, said = check(tmp_path, "--limit-s", "10", python=sys.executable, **planted)
    subject, seen = only(said)
    assert (code, subject) == (1, "ranks") and "rank 1" in seen and "10 s" in seen

"""The kernel's count of killed processes, in a folder that stands in for a container's cgroup (version 2, and 1)."""

from __future__ import annotations

from pathlib import Path

from tests.codes import find_codes
from trainer.launch.memory_limits import ContainerMemory


def write(folder: Path, oom: int, limit: str = str(4 << 30), peak: str = str(3 << 30)) -> Path:
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 12\noom {oom}\noom_kill {oom}\n")
    (folder / "memory.max").write_text(limit)
    (folder / "memory.peak").write_text(peak)
    return folder


def test_a_kill_by_the_kernel_is_told_from_one_by_somebody_else(tmp_path):
    memory = ContainerMemory(write(tmp_path, 1))
    said = memory.explain_kill()
    assert find_codes(said) == ["SL-kill-within-limit"] and "4.00 GiB" in said and "3.00 GiB" in said
    write(tmp_path, 2)
    said = memory.explain_kill()
    assert find_codes(said) == ["SL-oom-kill-limit"] and "4.00 GiB" in said and "3.00 GiB" in said
    (tmp_path / "memory.peak").unlink()  # an older kernel
    assert find_codes(memory.explain_kill()) == ["SL-oom-kill-limit"]


def test_without_a_limit_there_may_be_no_container(tmp_path):
    """On a laptop: the highest use is that of the whole machine, and there is nothing to raise."""
    memory = ContainerMemory(write(tmp_path, 1, limit="max"))
    assert find_codes(memory.explain_kill()) == ["SL-kill-from-outside"]
    write(tmp_path, 3, limit="max")
    said = memory.explain_kill()
    assert find_codes(said) == ["SL-oom-kill-machine"] and "GiB" not in said and "run.resources" not in said
    assert ContainerMemory(tmp_path / "none").explain_kill() == ""


def write_v1(folder: Path, oom: int, limit: int = 2 << 30) -> None:
    (folder / "memory").mkdir(exist_ok=True)
    (folder / "memory" / "memory.oom_control").write_text(f"under_oom 0\noom_kill {oom}\n")
    (folder / "memory" / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory" / "memory.max_usage_in_bytes").write_text(f"{1 << 30}\n")


def test_a_node_with_the_older_cgroups_says_limit_and_use_too(tmp_path):
    write_v1(tmp_path, 0)
    memory = ContainerMemory(tmp_path)
    write_v1(tmp_path, 1)
    said = memory.explain_kill()
    assert find_codes(said) == ["SL-oom-kill-limit"] and "2.00 GiB" in said and "1.00 GiB" in said
    write_v1(tmp_path, 1, limit=0x7FFFFFFFFFFFF000)  # as it writes that there is none
    assert find_codes(memory.explain_kill()) == ["SL-oom-kill-machine"]

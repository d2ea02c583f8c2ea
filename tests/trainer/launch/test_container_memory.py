"""The kernel's count of killed processes, in a folder that stands in for a container's cgroup (version 2, and 1)."""

from __future__ import annotations

from pathlib import Path

from trainer.launch.container_memory import ContainerMemory

EVENTS = "low 0\nhigh 0\nmax 12\noom {oom}\noom_kill {oom}\noom_group_kill 0\n"


def write(folder: Path, oom: int, limit: str = str(4 << 30), peak: str = str((4 << 30) - 4096)) -> Path:
    for name, text in {
        "memory.events": EVENTS.format(oom=oom),
        "memory.max": limit,
        "memory.peak": peak,
    }.items():
        (folder / name).write_text(text)
    return folder


def test_a_kill_by_the_kernel_says_limit_and_use(tmp_path):
    memory = ContainerMemory(write(tmp_path, 1))
    write(tmp_path, 2)
    said = memory.explain_kill()
    assert said.startswith(
        "the kernel's OOM killer has ended 1 of this container's processes: 4.00 GiB are allowed, it"
    )
    assert "used 4.00 GiB at most; raise run.resources.limits.memory" in said


def test_a_kill_by_somebody_else_is_told_apart(tmp_path):
    memory = ContainerMemory(write(tmp_path, 1))
    said = memory.explain_kill()
    assert said.startswith(
        "not for this container's own limit: 4.00 GiB are allowed, it used 4.00 GiB at most; it was"
    )
    assert "a kill -9" in said


def test_without_a_limit_there_may_be_no_container(tmp_path):
    """On a laptop: nothing of containers or nodes, and no highest use, which is that of the whole machine."""
    memory = ContainerMemory(write(tmp_path, 1, limit="max"))
    said = memory.explain_kill()
    assert said.startswith(
        "the kernel's OOM killer has ended none of these processes; it was ended from outside"
    )
    assert "container" not in said and "GiB" not in said and "node" not in said
    write(tmp_path, 3, limit="max")
    said = memory.explain_kill()
    assert said.startswith(
        "the kernel's OOM killer has ended 2 of these processes: no limit is set, so the machine"
    )
    assert "run.resources" not in said and "`dmesg`" in said


OF_V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {oom}\n"


def write_v1(folder: Path, oom: int, limit: int = 2 << 30) -> Path:
    (folder / "memory").mkdir(exist_ok=True)
    (folder / "memory" / "memory.oom_control").write_text(OF_V1.format(oom=oom))
    (folder / "memory" / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory" / "memory.max_usage_in_bytes").write_text(f"{2 << 30}\n")
    return folder


def test_a_node_with_the_older_cgroups_says_limit_and_use_too(tmp_path):
    memory = ContainerMemory(write_v1(tmp_path, 0))
    write_v1(tmp_path, 1)
    assert (
        "has ended 1 of this container's processes: 2.00 GiB are allowed, it used 2.00"
        in memory.explain_kill()
    )
    write_v1(tmp_path, 1, limit=0x7FFFFFFFFFFFF000)  # as it writes that there is none
    assert "has ended 1 of these processes: no limit is set" in memory.explain_kill()


def test_an_older_kernel_and_no_cgroup_say_what_they_can(tmp_path):
    memory = ContainerMemory(write(tmp_path, 0))
    (tmp_path / "memory.peak").unlink()
    write_events = tmp_path / "memory.events"
    write_events.write_text(EVENTS.format(oom=1))
    assert "its highest use is not known" in memory.explain_kill()
    assert ContainerMemory(tmp_path / "none").explain_kill() == ""

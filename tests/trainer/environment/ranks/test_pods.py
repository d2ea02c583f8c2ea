"""`mode: check` in two pods, as their operator starts them: what the second one lacks is named, with its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.pods import Pods, open_pods
from tests.programs import find_python
from tests.trainer.environment.planted import HANGS, SHIFTED, mounted, plant_in_ranks
from tests.trainer.environment.ranks.test_laptop import SUBJECTS

CHECK = {"TRAINER_MODE": "check", "TRAINER_COLLECTIVE_TIMEOUT_S": "120"}


def in_second(*words: str) -> Callable[[int], tuple[str, ...]]:
    return lambda index: words if index == 1 else ()


@contextmanager
def checked(
    folder: Path, settings: Mapping[str, str] = {}, **more: Any
) -> Iterator[tuple[Pods, int, list[tuple[str, str]]]]:
    """Two pods that have ended, the code of the first, and (subject, what was seen) of all that is not ok."""
    logs = folder / "logs"
    logs.mkdir()
    results = folder / "results"
    results.mkdir(exist_ok=True)
    with open_pods(results, 2, settings={**CHECK, **settings}, logs=logs, **more) as pods:
        pods.start()
        code, other = pods.wait_for_end(0, 240), pods.wait_for_end(1, 240)
        assert code == other, "both pods have the verdict"
        yield pods, code, read_table((logs / "pod-0.log").read_text())


def read_table(text: str) -> list[tuple[str, str]]:
    """Of a table's lines that are not ok."""
    lines = [line for line in text.splitlines() if line.startswith(("problem ", "warning "))]
    subjects = (*SUBJECTS, "within a pod", "network", "pods")
    return [
        (subject, line[9:].removeprefix(subject).strip())
        for line in lines
        for subject in subjects
        if line[9:].startswith(subject + " ")
    ]


def test_two_healthy_pods_lack_nothing(tmp_path: Path) -> None:
    with checked(tmp_path, python=find_python()) as (pods, code, found):
        assert (code, found) == (0, []), pods.said()
        kept = json.loads((tmp_path / "results" / "_environment" / "try.json").read_text())
        assert [each["subject"] for each in kept["findings"]] == SUBJECTS
        assert sorted(kept["ranks"]) == ["0", "1"]
        assert not (tmp_path / "results" / "default").exists(), "a check is no run"
        tables = [
            (tmp_path / "logs" / f"pod-{index}.log").read_text().count("nothing is missing")
            for index in (0, 1)
        ]
        assert tables == [1, 1], "whoever looks at either pod sees it"


def test_each_lack_of_the_second_pod_is_named_once(tmp_path: Path) -> None:
    """Several at once: none hides another one, and the first pod has none."""
    site = plant_in_ranks(tmp_path / "site", "1", SHIFTED.format(seconds=30))
    with mounted(Path("/dev/shm"), "1m") as words:
        prefix = in_second(
            *words, "env", f"PYTHONPATH={site['PYTHONPATH']}", "TRAINER_ACCELERATOR=nvidia.com/gpu"
        )
        with checked(tmp_path, prefix=prefix) as (pods, code, found):
            assert code == 1, pods.said()
            subjects = [subject for subject, _ in found]
            assert subjects == ["devices", "shared memory", "clock", "clock"], found
            assert all("try-worker-1" in seen and "try-worker-0" not in seen for _, seen in found), found
            assert "its clock is 30.0 s before rank 0" in found[2][1]
            assert "its clock is 30.0 s before the results volume's" in found[3][1]


def test_volumes_that_are_not_the_same(tmp_path: Path) -> None:
    """As an emptyDir in the place of the claim: each pod sees its own."""
    (tmp_path / "results").mkdir()
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nif 'trainer.environment.rank' in sys.orig_argv:\n"
        "    import trainer.environment.shared_files as files\n    files.PLENTY_S = 2.0\n"
    )
    impatient = {"PYTHONPATH": f"{site}"}
    with (
        mounted(tmp_path / "results", "2g") as words,
        checked(tmp_path, impatient, prefix=in_second(*words)) as seen,
    ):
        pods, code, found = seen
        assert code == 1, pods.said()
        assert [subject for subject, _ in found] == ["shared files", "shared files"], found
        assert "does not see what rank(s) 0 wrote" in found[1][1]


def test_a_pod_that_never_comes_is_named(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with open_pods(
        tmp_path, 2, settings={**CHECK, "TRAINER_WAIT_S": "3"}, logs=logs, python=find_python()
    ) as pods:
        pods.start(0)
        assert pods.wait_for_end(0, 60) == 1, pods.said()
        (named,) = read_table((logs / "pod-0.log").read_text())
        assert named == ("pods", "pod 1 (counted from 0) has not come within 3 s")


def test_those_who_have_come_hear_who_has_not(tmp_path: Path) -> None:
    """Of three; whoever has more patience than the first one would not find it any more."""
    logs = tmp_path / "logs"
    logs.mkdir()
    patient = in_second("env", "TRAINER_WAIT_S=100")
    settings = {**CHECK, "TRAINER_WAIT_S": "6"}
    with open_pods(tmp_path, 3, settings=settings, logs=logs, python=find_python(), prefix=patient) as pods:
        pods.start(0)
        pods.start(1)
        for index in (0, 1):
            assert pods.wait_for_end(index, 60) == 1, pods.said()
            (named,) = read_table((logs / f"pod-{index}.log").read_text())
            assert named == ("pods", "pod 2 (counted from 0) has not come within 6 s")


def test_a_first_pod_that_never_comes_is_named(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with open_pods(
        tmp_path, 2, settings={**CHECK, "TRAINER_WAIT_S": "3"}, logs=logs, python=find_python()
    ) as pods:
        pods.start(1)
        assert pods.wait_for_end(1, 60) == 1, pods.said()
        (named,) = read_table((logs / "pod-1.log").read_text())
        assert named[1].startswith("pod 0 (counted from 0) has not come within 3 s"), named


def test_a_first_pod_that_is_lost_meanwhile_leaves_nobody_waiting(tmp_path: Path) -> None:
    """The board goes with it."""
    logs = tmp_path / "logs"
    logs.mkdir()
    site = plant_in_ranks(tmp_path / "site", "1", HANGS)
    settings = {**CHECK, "TRAINER_COLLECTIVE_TIMEOUT_S": "10", **site}
    with open_pods(tmp_path / "logs", 2, settings=settings, logs=logs) as pods:
        pods.start()
        pods.wait_for(lambda: "meeting ..." in (logs / "pod-0.log").read_text(), "rank 0 waits for rank 1")
        pods.kill(0)
        assert pods.wait_for_end(1, 100) == 1, pods.said()
        (named,) = read_table((logs / "pod-1.log").read_text())
        assert named[0] == "pods" and "pod 0 (counted from 0) was there and is lost" in named[1], named

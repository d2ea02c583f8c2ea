"""`mode: check` in two pods, as their operator starts them: what the second one lacks is named, with its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.codes import find_codes
from tests.faults.pods import Pods, open_pods
from tests.programs import find_python
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
        logs = [(tmp_path / "logs" / f"pod-{index}.log").read_text() for index in (0, 1)]
        assert all(log.count("\nok ") == len(SUBJECTS) - log.startswith("ok ") for log in logs), (
            "either has it"
        )


def test_those_who_have_come_hear_who_has_not(tmp_path: Path) -> None:
    """Of three; whoever has more patience than the first one would not find it any more. Then without the first."""
    logs = tmp_path / "logs"
    logs.mkdir()
    patient = in_second("env", "TRAINER_WAIT_S=100")
    settings = {**CHECK, "TRAINER_WAIT_S": "4"}
    with open_pods(tmp_path, 3, settings=settings, logs=logs, python=find_python(), prefix=patient) as pods:
        pods.start(0)
        pods.start(1)
        for index in (0, 1):
            assert pods.wait_for_end(index, 60) == 1, pods.said()
            ((subject, seen),) = read_table((logs / f"pod-{index}.log").read_text())
            assert (subject, find_codes(seen)) == ("pods", ["SL-pod-absent"]) and seen.startswith("pod 2 ")
    with open_pods(tmp_path, 2, settings=settings, logs=logs, python=find_python()) as pods:
        pods.start(1)
        assert pods.wait_for_end(1, 60) == 1, pods.said()
        assert read_table((logs / "pod-1.log").read_text())[-1][1].startswith("pod 0 ")

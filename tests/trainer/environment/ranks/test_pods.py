"""`mode: check` in two pods, as their operator starts them: what the second one lacks is named, with its name."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.codes import find_codes
from tests.faults.pods import Pods, open_pods
from tests.programs import find_python

ROOT = Path(__file__).parents[4]
SUBJECTS = [
    *("ranks", "versions", "devices", "shared memory", "results volume", "shared files", "clock"),
    "all-reduce",
]


def check(
    results: Path,
    *options: str,
    prefix: tuple[str, ...] = (),
    python: str = "",
    processes: int = 2,
    **env: str,
) -> tuple[int, dict[str, Any]]:
    words = ["-m", "trainer.environment", "--results", str(results), "--processes", str(processes), "--json"]
    command, env = [*prefix, python or find_python(), *words, *options], without_settings(**env)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("{"), done.stdout[-2000:] + done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def without_settings(**env: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "HOSTNAME": "laptop", **env}


def wrong(said: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["subject"], each["seen"]) for each in said["findings"] if each["state"] != "ok"]


def only(said: dict[str, Any]) -> tuple[str, str]:
    (named,) = wrong(said)
    return named


def test_a_healthy_machine_lacks_nothing(tmp_path: Path) -> None:
    code, said = check(tmp_path / "new")
    assert (code, wrong(said)) == (0, [])
    assert [each["subject"] for each in said["findings"]] == SUBJECTS
    rows = said["ranks"]["0"]["all-reduce"]["all"]
    assert [row["mib"] for row in rows] == [1 / 16, 1, 16] and all(row["gb_per_s"] > 0 for row in rows)
    kept = json.loads((tmp_path / "new" / "_environment" / "check.json").read_text())
    assert kept["findings"] == said["findings"] and kept["schema_version"] == 1
    assert [path.name for path in (tmp_path / "new" / "_environment").iterdir()] == ["check.json"], "swept"


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
    lines = [line for line in text.splitlines() if line.startswith(("problem ", "warning "))]
    subjects = (*SUBJECTS, "within a pod", "network", "pods")
    return [
        (subject, line[9:].removeprefix(subject).strip())
        for line in lines
        for subject in subjects
        if line[9:].startswith(subject + " ")
    ]


def test_those_who_have_come_hear_who_has_not(tmp_path: Path) -> None:
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

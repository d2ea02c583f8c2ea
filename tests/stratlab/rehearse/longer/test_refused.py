"""All charts are checked before the first run starts, and before MLflow does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratlab.pod_commands import Command, Pod
from stratlab.progress import Display
from stratlab.rehearsal import check_settings, rehearse
from stratlab.rehearsal_plan import PlannedRun, RehearsalRequest
from stratlab.trainer_program import Answers, Refused

Screen = tuple[Display, Callable[[], str]]


def test_the_second_chart_is_refused_before_the_first_is_trained(tmp_path: Path, screen: Screen) -> None:
    """With real charts; a server that is started would be an error here."""

    def no_server(*_: object, **__: object) -> None:
        raise AssertionError("MLflow was started")

    charts = [Path("charts/ddp"), Path("charts/single")]
    request = RehearsalRequest(
        charts=charts, results=tmp_path / "runs", mlflow=tmp_path / "mlflow", processes=2
    )
    with pytest.raises(Refused) as refusal:
        rehearse(request, screen[0], start_server=no_server)  # type: ignore[arg-type]
    assert refusal.value.code == 2 and "single: " in str(refusal.value) and "ddp" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_long_check_is_told_ever_more_rarely(
    tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(runs: object, env: object, options: object, waiting: Callable[[float], object]) -> Answers:
        for seconds in range(5, 65, 5):
            waiting(seconds)
        return Answers({})

    monkeypatch.setattr("stratlab.trainer_program.ask_trainer", ask)
    monkeypatch.setattr("stratlab.trainer_program.TRAINER", ("tiny",))
    pod = Pod("tiny", "node0", (Command("pytorch", ("tiny",), {}, None),), ())
    check_settings([PlannedRun("tiny", tmp_path, [pod], None, "Never")], False, screen[0])
    assert len(screen[1]().splitlines()) == 1 + 3
    absent = Answers({}, "no trainer here", is_absent=True)
    monkeypatch.setattr("stratlab.trainer_program.ask_trainer", lambda *_, **__: absent)
    with pytest.raises(Refused) as refusal:
        check_settings([PlannedRun("tiny", tmp_path, [pod], None, "Never")], False, screen[0])
    assert refusal.value.code == 2 and "no trainer here" in str(refusal.value)

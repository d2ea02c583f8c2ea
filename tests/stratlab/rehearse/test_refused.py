"""All charts are checked before the first run starts, and before MLflow does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratlab.progress.display import Display
from stratlab.rehearse.planned_run import Request
from stratlab.rehearse.rehearsal import rehearse
from stratlab.rendering.checking import Refused
from tests.stratlab.rehearse.conftest import write_chart


def test_the_second_chart_is_refused_before_the_first_is_trained(
    tmp_path: Path, screen: tuple[Display, Callable[[], str]]
) -> None:
    """With real charts; a server that is started would be an error here."""

    def no_server(*_: object, **__: object) -> None:
        raise AssertionError("MLflow was started")

    request = Request(
        charts=[Path("charts/ddp"), Path("charts/single")],
        results=tmp_path / "runs",
        mlflow=tmp_path / "mlflow",
        processes=2,
    )
    with pytest.raises(Refused) as refusal:
        rehearse(request, screen[0], start_server=no_server)  # type: ignore[arg-type]
    assert refusal.value.code == 2
    assert str(refusal.value).startswith("nothing was started: single: strategy single runs in 1 process")
    assert list(tmp_path.iterdir()) == []


def test_charts_that_do_not_render_are_named_together(
    tmp_path: Path, screen: tuple[Display, Callable[[], str]]
) -> None:
    broken = write_chart(tmp_path / "broken", job="{{ fail `not this one` }}")
    other = write_chart(tmp_path / "other", job="{{ fail `nor this` }}")
    request = Request(charts=[broken, other], results=tmp_path / "runs", mlflow=tmp_path / "mlflow")
    with pytest.raises(ValueError) as refusal:
        rehearse(request, screen[0])
    assert "broken: " in str(refusal.value) and "not this one" in str(refusal.value)
    assert "other: " in str(refusal.value) and "nor this" in str(refusal.value)

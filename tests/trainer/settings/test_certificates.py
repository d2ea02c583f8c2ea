"""Every program of the trainer that may open a connection reads STRATLAB_CA_FILE before it does anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trainer.evaluation.command import main as evaluate
from trainer.failures import BAD_CONFIG
from trainer.prepare.command import main as prepare
from trainer.settings.certificates import GIVEN


@pytest.mark.parametrize(("main", "arguments"), [(evaluate, ["run"]), (prepare, ["--dataset", "x"])])
def test_a_file_without_a_certificate_is_refused_first(
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    monkeypatch.setenv(GIVEN, str(tmp_path / "ca.crt"))
    assert main(arguments) == BAD_CONFIG
    assert GIVEN in capsys.readouterr().err

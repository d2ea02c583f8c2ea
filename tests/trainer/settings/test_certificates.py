"""Every program of the trainer that may open a connection reads STRATLAB_CA_FILE before it does anything else."""

from __future__ import annotations

import pytest

from stratlab_spec.exit_codes import BAD_CONFIG
from tests.codes import find_codes
from trainer.distributed.machine import GIVEN
from trainer.evaluation.command import main as evaluate
from trainer.prepare.preparation import main as prepare


@pytest.mark.parametrize(("main", "arguments"), [(evaluate, ["run"]), (prepare, ["--dataset", "x"])])
def test_a_file_without_a_certificate_is_refused_first(main, arguments, tmp_path, monkeypatch, capsys):
    (tmp_path / "ca.crt").write_text("no certificate")
    monkeypatch.setenv(GIVEN, str(tmp_path / "ca.crt"))
    assert main(arguments) == BAD_CONFIG
    assert find_codes(capsys.readouterr().err) == ["SL-certificate-absent"]

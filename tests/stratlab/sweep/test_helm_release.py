"""What helm is asked, and what is read from its answers. Helm is a stand-in here; tests/cluster has the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.sweep import helm_release
from stratlab.sweep.decision import Seen
from stratlab.sweep.helm_release import HelmFailed, install, look_at, uninstall
from stratlab.sweep.planned_release import hash_asked
from tests.codes import find_codes
from tests.stratlab.sweep.stand_ins import plan

VALUES = {"run": {"config": {"lr": 1.5, "model": "no"}}}


class Helm:
    """Notes its arguments, one a line, and the values it is given; answers by its first argument."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.program = folder, folder / "helm"
        self.program.write_text(
            '#!/bin/bash\ncd "${0%/*}"\nprintf "%s\\n" "$*" >> calls\n'
            'verb=$1; while [ $# -gt 0 ]; do [ "$1" = -f ] && cat "$2" > values; shift; done; . "./$verb"\n'
        )
        self.program.chmod(0o755)

    def answer(self, verb: str, content: Any, code: int = 0) -> None:
        stream = ">&2" if code else ""
        (self.folder / verb).write_text(f"cat <<'END' {stream}\n{content}\nEND\nexit {code}\n")


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def test_each_call_names_release_namespace_and_context(helm: Helm) -> None:
    helm.answer("status", json.dumps({"info": {"status": "deployed"}, "config": VALUES}))
    helm.answer("get", json.dumps({"chart": "ddp"}))
    helm.answer("install", "")
    helm.answer("uninstall", "")
    assert look_at(helm.program, "lab", "a") == Seen("deployed", hash_asked("ddp", VALUES))
    install(helm.program, "lab", plan("a", values=VALUES), "east")
    assert json.loads((helm.folder / "values").read_text()) == VALUES
    uninstall(helm.program, "lab", "a", "east")
    status, metadata, installed, removed = (helm.folder / "calls").read_text().splitlines()
    assert status == "status a -n lab -o json" and metadata == "get metadata a -n lab -o json"
    assert installed.startswith("install a charts/ddp -n lab -f /")
    assert installed.endswith("/values.json --kube-context east")
    assert removed == "uninstall a -n lab --ignore-not-found --cascade foreground --wait --kube-context east"


def test_a_release_without_values_of_its_own_is_one_too(helm: Helm) -> None:
    helm.answer("status", json.dumps({"info": {"status": "failed"}}))
    helm.answer("get", json.dumps({"chart": "ddp"}))
    assert look_at(helm.program, "lab", "a") == Seen("failed", hash_asked("ddp", {}))


def test_only_a_release_that_is_not_found_is_none(helm: Helm) -> None:
    helm.answer("status", "Error: release: not found", code=1)
    assert look_at(helm.program, "lab", "a") == Seen()
    helm.answer("status", "WARNING: old\nlevel=WARN msg=x\nError: secrets is forbidden", code=1)
    with pytest.raises(HelmFailed) as failure:
        look_at(helm.program, "lab", "a")
    assert find_codes(failure.value) == ["SL-helm-failed"] and "secrets is forbidden" in str(failure.value)
    assert "old" not in str(failure.value) and "msg=x" not in str(failure.value), "remarks are no reason"


def test_a_helm_that_does_not_end_has_failed(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helm_release, "UNINSTALL_S", 0.2)
    (helm.folder / "uninstall").write_text("exec sleep 5")
    with pytest.raises(HelmFailed) as failure:
        uninstall(helm.program, "lab", "a")
    assert find_codes(failure.value) == ["SL-helm-no-end"]

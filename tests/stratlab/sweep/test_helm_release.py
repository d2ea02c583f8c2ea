"""What helm is asked, and what is read from its answers. Helm is a stand-in here; tests/cluster has the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratlab.cluster.workloads import APIS, Workload
from stratlab.sweep import helm_release
from stratlab.sweep.decision import Seen
from stratlab.sweep.helm_release import HelmFailed, install, look_at, uninstall
from stratlab.sweep.matrix import Release
from stratlab.sweep.planned_release import Planned, hash_asked

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

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def plan() -> Planned:
    return Planned(
        Release("a", "ddp", {}, 1, {}), Path("charts/ddp"), VALUES, "", Workload(APIS["pytorchjob"], {}), True
    )


@pytest.mark.parametrize(("context", "more"), [(None, ""), ("east", " --kube-context east")])
def test_each_call_names_release_namespace_and_context(helm: Helm, context: str | None, more: str) -> None:
    helm.answer("status", json.dumps({"info": {"status": "deployed"}, "config": VALUES}))
    helm.answer("get", json.dumps({"chart": "ddp"}))
    helm.answer("install", "")
    helm.answer("uninstall", "")
    assert look_at(helm.program, "lab", "a", context) == Seen("deployed", hash_asked("ddp", VALUES))
    install(helm.program, "lab", plan(), context)
    assert json.loads((helm.folder / "values").read_text()) == VALUES
    uninstall(helm.program, "lab", "a", context)
    status, metadata, installed, removed = helm.calls
    assert status == f"status a -n lab -o json{more}" and metadata == f"get metadata a -n lab -o json{more}"
    assert installed.startswith("install a charts/ddp -n lab -f /") and installed.endswith(
        f"/values.json{more}"
    )
    assert removed == f"uninstall a -n lab --ignore-not-found --cascade foreground --wait{more}"


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
    assert str(failure.value).endswith("status: Error: secrets is forbidden") or str(failure.value).endswith(
        "status: secrets is forbidden"
    )


def test_a_helm_that_does_not_end_has_failed(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helm_release, "UNINSTALL_S", 0.2)
    (helm.folder / "uninstall").write_text("exec sleep 5")
    with pytest.raises(HelmFailed):
        uninstall(helm.program, "lab", "a")

"""Overlays built by the real kubectl, no cluster, and what the tests read from them."""

import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.charts.rendering import ROOT, Document, find_program, read_documents

MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(path.parent.name for path in MANIFESTS.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in MANIFESTS.glob("components/*/kustomization.yaml"))


@functools.cache
def build_overlay(overlay: str, *components: str, namespace: str | None = None) -> list[Document]:
    """All objects of an overlay with components, each question once."""
    with tempfile.TemporaryDirectory() as folder:
        return build(write_overlay(Path(folder), overlay, components, namespace))


def build(folder: Path) -> list[Document]:
    """All objects of a kustomization, which must build."""
    command = [str(find_program("kubectl")), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return read_documents(done.stdout)


def write_overlay(
    folder: Path, overlay: str | Path, components: Sequence[str] = (), namespace: str | None = None
) -> Path:
    """An overlay of an overlay (its name here, or the folder of another one), as a user writes it."""

    def relative(path: Path) -> str:
        return os.path.relpath(path.resolve(), folder.resolve())

    below = overlay if isinstance(overlay, Path) else MANIFESTS / "overlays" / overlay
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [relative(below)],
        "components": [relative(MANIFESTS / "components" / name) for name in components],
        **({"namespace": namespace} if namespace else {}),
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    return folder


def pick(documents: Sequence[Document], kind: str, name: str) -> Document:
    """The one object of this kind and name."""
    (found,) = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def kinds(documents: Sequence[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def mlflow_container(documents: Sequence[Document]) -> dict[str, Any]:
    (container,) = pick(documents, "Deployment", "mlflow")["spec"]["template"]["spec"]["containers"]
    return container

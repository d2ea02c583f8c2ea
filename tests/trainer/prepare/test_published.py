"""Weights of torchvision, from a server that is a folder here."""

from __future__ import annotations

import hashlib
import json
import urllib.error
from pathlib import Path

import pytest
import torchvision

from stratlab_spec.registry import PUBLISHED_FILES, SERVER
from tests.codes import find_codes
from trainer.models.torchvision_networks import NETWORKS
from trainer.prepare import origin, request
from trainer.prepare.preparation import main

CONTENT = b"weights"
FILE = f"net-{hashlib.sha256(CONTENT).hexdigest()[:8]}.pth"


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / FILE).write_bytes(CONTENT)
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(origin, "SERVER", folder.as_uri())
    for module in (origin, request):
        monkeypatch.setattr(module, "PUBLISHED_FILES", {"vgg": FILE})
    return folder


def prepare(tmp_path: Path, network: str = "vgg", *more: str) -> int:
    return main(["--weights", network, "--name", "w", "--to", str(tmp_path / "volume"), *more])


def test_the_folder_is_a_torch_home(tmp_path: Path) -> None:
    assert prepare(tmp_path) == 0
    folder = tmp_path / "volume" / "_prepared" / "w"
    assert (folder / "hub" / "checkpoints" / FILE).read_bytes() == CONTENT
    done = json.loads((folder / "DONE.json").read_text())
    assert (done["kind"], done["source"], done["bytes"]) == ("weights", "vgg", len(CONTENT))
    assert prepare(tmp_path) == 0


def test_a_file_of_other_content_leaves_nothing_and_one_that_is_not_there_is_data_missing(
    tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (server / FILE).write_bytes(b"cut off")
    assert prepare(tmp_path) == 1 and find_codes(capsys.readouterr().err) == ["SL-published-sha256"]
    assert not (tmp_path / "volume" / "_prepared" / "w").exists()

    def refuse(url: str, timeout: float) -> None:
        raise urllib.error.HTTPError(url, 404, "Not Found", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(origin.urllib.request, "urlopen", refuse)
    assert prepare(tmp_path) == 3 and find_codes(capsys.readouterr().err) == ["SL-published-absent"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("alexnet",), "SL-weights-name"),
        (("vgg", "--revision", "main"), "SL-revision-of-weights"),
        (("vgg", "--subset", "a"), "SL-subset-of-model"),
        (("vgg", "--seq-len", "8"), "SL-option-needs-tokenize"),
        (("vgg", "--model", "a/b"), "SL-prepare-arguments"),
    ],
)
def test_refusals(tmp_path: Path, arguments, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(tmp_path, *arguments) == 2 and find_codes(capsys.readouterr().err) == [code]


def test_the_table_is_torchvisions_own() -> None:
    """What a network is fine-tuned from by name, and where torchvision looks for it."""
    get = torchvision.models.get_model_weights
    urls = {name: get(row.function).DEFAULT.url for name, row in NETWORKS.items()}
    assert urls == {name: f"{SERVER}/{file}" for name, file in PUBLISHED_FILES.items()}

"""Weights of torchvision, from a server that is a folder here."""

from __future__ import annotations

import hashlib
import json
import urllib.error
from pathlib import Path

import pytest

from trainer.prepare import published
from trainer.prepare.command import main

CONTENT = b"weights"
FILE = f"net-{hashlib.sha256(CONTENT).hexdigest()[:8]}.pth"


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / FILE).write_bytes(CONTENT)
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(published, "SERVER", folder.as_uri())
    monkeypatch.setattr(published, "PUBLISHED_FILES", {"vgg": FILE})
    return folder


def prepare(tmp_path: Path, network: str = "vgg", *more: str) -> int:
    return main(["--weights", network, "--name", "w", "--to", str(tmp_path / "volume"), *more])


def test_the_folder_is_a_torch_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(tmp_path) == 0
    folder = tmp_path / "volume" / "_prepared" / "w"
    assert (folder / "hub" / "checkpoints" / FILE).read_bytes() == CONTENT
    done = json.loads((folder / "DONE.json").read_text())
    assert (done["kind"], done["source"], done["bytes"]) == ("weights", "vgg", len(CONTENT))
    assert "weights vgg, 1 file" in capsys.readouterr().out
    assert prepare(tmp_path) == 0
    assert "is there" in capsys.readouterr().out


def test_a_file_of_other_content_is_refused_and_leaves_nothing(
    tmp_path: Path, server: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (server / FILE).write_bytes(b"cut off")
    assert prepare(tmp_path) == 1
    assert "its sha256 begins with" in capsys.readouterr().err
    assert not (tmp_path / "volume" / "_prepared" / "w").exists()


def test_what_the_server_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, timeout: float) -> None:
        raise urllib.error.HTTPError(url, 404, "Not Found", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(published.urllib.request, "urlopen", refuse)
    assert prepare(tmp_path) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("alexnet",), "expected one of mobilenet, efficientnet, vgg, resnet"),
        (("vgg", "--revision", "main"), "weights of torchvision have none"),
        (("vgg", "--subset", "a"), "a model has none"),
        (("vgg", "--seq-len", "8"), "only with --tokenize"),
        (("vgg", "--model", "a/b"), "not allowed with"),
    ],
)
def test_refusals(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(tmp_path, *arguments) == 2
    assert sentence in capsys.readouterr().err


def test_the_table_is_torchvisions_own() -> None:
    """What a network is fine-tuned from by name, and where torchvision looks for it."""
    torchvision = pytest.importorskip("torchvision")
    from trainer.models.torchvision_networks import NETWORKS
    from trainer.settings.published_weights import PUBLISHED_FILES, SERVER

    urls = {
        name: torchvision.models.get_model_weights(row.function).DEFAULT.url for name, row in NETWORKS.items()
    }
    assert urls == {name: f"{SERVER}/{file}" for name, file in PUBLISHED_FILES.items()}

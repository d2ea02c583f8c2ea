"""What is asked for and cannot be is named by its option, all at once; who is at work; a rename that two want."""

import hashlib
import json
import os
import urllib.error
from pathlib import Path

import pytest

from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from tests.trainer.data.pictures import pngs, write
from trainer.evaluation.command import main as evaluate
from trainer.prepare import origin, request
from trainer.prepare.destination import Destination, Overtaken, acquire, observe, publish
from trainer.prepare.preparation import main as prepare
from trainer.prepare.request import read_request

TOKENS = ("--dataset", "arithmetic", "--tokenize", "qwen_tiny")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--name", "x"), ["--dataset"]),
        (("--dataset", "a/b", "--name", "x", "--nam", "y"), ["--nam"]),
        (("--dataset", "digits", "--name", "x"), ["digits"]),
        (("--model", "/data/net", "--name", "x"), ["/data/net"]),
        (("--dataset", "a/b", "--name", "x", "--stale-after-s", "0"), ["--stale-after-s"]),
        (("--dataset", "a b", "--name", "..", "--to", "/nowhere"), ["a b", "--name", "/nowhere"]),
        (("--dataset", "a/b", "--name", "x", "--seq-len", "64", "--no-packing"), ["--seq-len, --no-packing"]),
        ((*TOKENS, "--name", "x", "--subset", "s", "--seq-len", "4"), ["--name", "--subset", "--seq-len 4"]),
        (("--model", "org/net", "--tokenize", "qwen_tiny"), ["--model", "--dataset"]),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        read_request(["--to", str(tmp_path), *arguments])
    problems = refused.value.problems
    assert len(problems) == len(named), problems
    assert all(name in problem for name, problem in zip(named, problems, strict=True)), problems


def test_the_rename_has_one_winner(tmp_path: Path) -> None:
    place = Destination(tmp_path, "pets")
    for token in ("a", "b"):
        place.partial(token).mkdir(parents=True)
        (place.partial(token) / "file").write_text(token)
    publish(place, place.partial("a"))
    with pytest.raises(Overtaken):
        publish(place, place.partial("b"))
    assert (place.folder / "file").read_text() == "a"


@pytest.mark.parametrize("clock_s", [0.0, 4e9])  # of the node that writes
def test_a_lock_is_stale_when_it_has_not_changed_while_it_was_watched(tmp_path: Path, clock_s: float) -> None:
    lock = acquire(tmp_path, 1, stale_after_s=60.0)
    assert lock is not None
    os.utime(lock.path, (clock_s, clock_s))
    first = observe(tmp_path, None, 1000.0, 60.0)
    assert first is not None and first.since_s == 1000.0 and not first.is_stale(1060.0)
    later = observe(tmp_path, first, 1055.0, 60.0)
    assert later is not None and later.since_s == 1000.0 and later.is_stale(1060.5)
    os.utime(lock.path, (clock_s + 1, clock_s + 1))
    alive = observe(tmp_path, later, 1058.0, 60.0)
    assert alive is not None and alive.since_s == 1058.0 and not alive.is_stale(1118.0)


def test_the_highest_number_owns_and_the_one_below_notices(tmp_path: Path) -> None:
    mine, other = (acquire(tmp_path, number, 60.0) for number in (1, 2))
    assert mine is not None and other is not None and acquire(tmp_path, 2, 60.0) is None
    other.check()
    with pytest.raises(Overtaken):
        mine.check()
    mine.release()  # not its own any more
    assert other.path.exists()
    other.release()
    assert not tmp_path.exists() and observe(tmp_path, None, 0.0, 60.0) is None


PAIR = {"query": "a", "response": "b"}
SHORT = [PAIR | {"query": f"{i}"} for i in range(20)]
LONG = [PAIR | {"query": "q" * 20 + str(i)} for i in range(20)]


@pytest.mark.parametrize(
    ("rows", "more", "code", "named", "cause"),
    [
        ([{"first": "a", "second": "b"}], {}, 2, "--text-columns", "SL-text-form-unknown"),
        ([PAIR], {"--text-columns": "query=q"}, 2, "--text-columns", "SL-option-value"),
        (None, {}, 3, "--dataset", "SL-text-data-absent"),
        (SHORT, {"--tokenize": "/none"}, 3, "--tokenize", "SL-tokenizer-folder-absent"),
        (LONG, {"--seq-len": "8"}, 2, "--seq-len", "SL-seq-len-too-short"),
    ],
)
def test_of_a_token_cache(rows, more, code, named, cause, tmp_path, capsys):
    data, volume = tmp_path / "data", tmp_path / "volume"
    volume.mkdir()
    if rows:
        write(data, {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()})
    given = {"--dataset": data, "--tokenize": "bytes", "--to": volume, **more}
    assert prepare([str(part) for option in given.items() for part in option]) == code
    said = capsys.readouterr().err
    assert find_codes(said)[-1] == cause and named in said and "TRAINER_" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "named", "cause"),
    [
        ([], 3, "--dataset-path", None),
        (["--weights", "none"], 2, "--weights=", None),
        (["--dataset-path", "pictures"], 3, "--dataset-path=", "SL-folder-unlabelled"),
        (["--dataset-path", "classes"], 2, "--weights=", "SL-exported-classes"),
    ],
)
def test_of_an_evaluation_and_of_pictures(arguments, code, named, cause, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pictures", {f"{i}.png": content for i, content in enumerate(pngs(8))})
    write(tmp_path / "classes", {f"{name}/{i}.png": pngs(1, i)[0] for name in "cd" for i in range(9)})
    described = {"stratlab_model": "cnn", "class_names": ["a", "b"], "channels": 3}
    config = Config(run="try", model="cnn", dataset_path=str(tmp_path / "gone"))
    run = {"config": config.model_dump(), "resolved": {}}
    files = {"model/config.json": json.dumps(described).encode(), "config.json": json.dumps(run).encode()}
    assert evaluate([str(write(tmp_path / "default" / "try", files)), *arguments, "--device", "cpu"]) == code
    said = capsys.readouterr().err
    assert named in said and "TRAINER_" not in said and cause in (None, *find_codes(said))
    if cause == "SL-folder-unlabelled":
        assert prepare(["--dataset", "./pictures", "--name", "x", "--to", str(tmp_path)]) == 3
        said = capsys.readouterr().err
        assert find_codes(said) == [cause] and f"--dataset '{tmp_path}/pictures'" in said


CONTENT = b"weights"
FILE = f"net-{hashlib.sha256(CONTENT).hexdigest()[:8]}.pth"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / FILE).write_bytes(CONTENT)
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(origin, "SERVER", folder.as_uri())
    for module in (origin, request):
        monkeypatch.setattr(module, "PUBLISHED_FILES", {"vgg": FILE})
    return folder


def prepare_weights(tmp_path: Path, network: str = "vgg", *more: str) -> int:
    return prepare(["--weights", network, "--name", "w", "--to", str(tmp_path / "volume"), *more])


def test_the_folder_of_weights_is_a_torch_home(tmp_path: Path, server: Path) -> None:
    assert prepare_weights(tmp_path) == 0
    folder = tmp_path / "volume" / "_prepared" / "w"
    assert (folder / "hub" / "checkpoints" / FILE).read_bytes() == CONTENT
    done = json.loads((folder / "DONE.json").read_text())
    assert (done["kind"], done["source"], done["bytes"]) == ("weights", "vgg", len(CONTENT))
    assert prepare_weights(tmp_path) == 0


def test_a_file_of_other_content_leaves_nothing_and_one_that_is_not_there_is_data_missing(
    tmp_path, server, monkeypatch, capsys
):
    (server / FILE).write_bytes(b"cut off")
    assert prepare_weights(tmp_path) == 1 and find_codes(capsys.readouterr().err) == ["SL-published-sha256"]
    assert not (tmp_path / "volume" / "_prepared" / "w").exists()

    def refuse(url: str, timeout: float) -> None:
        raise urllib.error.HTTPError(url, 404, "Not Found", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(origin.urllib.request, "urlopen", refuse)
    assert prepare_weights(tmp_path) == 3 and find_codes(capsys.readouterr().err) == ["SL-published-absent"]


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
def test_wrong_options_of_weights(tmp_path, server, arguments, code, capsys):
    assert prepare_weights(tmp_path, *arguments) == 2 and find_codes(capsys.readouterr().err) == [code]

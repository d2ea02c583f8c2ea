"""`python -m trainer.prepare` as its Job starts it: real processes on a real folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from tests.programs import find_python
from tests.trainer.fake_hub import COMMIT, run_fake_hub
from trainer.data import open_data
from trainer.failures import exit_code
from trainer.prepare.lock import Overtaken, acquire, observe
from trainer.prepare.origin import Written, find_os_error
from trainer.prepare.place import Place, publish
from trainer.prepare.request import Request, read_request
from trainer.prepare.work import prepare
from trainer.settings.config import Config, ConfigError

PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def png(seed: int, size: int = 16) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_images(folder: Path, train: int, test: int, size: int = 16) -> Path:
    """<folder>/<split>/<class>/<number>.png, as `datasets` reads folders of images."""
    for split, count in (("train", train), ("test", test)):
        for index in range(count):
            path = folder / split / ("cat", "dog")[index % 2] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(index, size))
    return folder


def start(
    *arguments: str | Path, env: dict[str, str] | None = None, before: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-m", "trainer.prepare", *map(str, arguments)]
    clean = {key: value for key, value in os.environ.items() if key.lower() not in PROXIES}
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean | (env or {})
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def run(*arguments: str | Path, **options: Any) -> tuple[int, str]:
    return finish(start(*arguments, **options))


def wait_for(condition: Any, deadline_s: float = 60) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("raw") / "pets", train=20, test=6)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def slow_images(tmp_path: Path) -> Path:
    """Takes some seconds to prepare: time enough to kill who does it."""
    return write_images(tmp_path / "slow", train=1500, test=2, size=8)


def prepared(results: Path, name: str = "pets") -> Path:
    """The prepared folder, which is whole; nothing but it is left."""
    folder = results / "_prepared" / name
    assert [path.name for path in folder.parent.iterdir()] == [name]
    done = json.loads((folder / "DONE.json").read_text())
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del files["DONE.json"]
    assert {e["path"]: e["sha256"] for e in done["files"]} == {
        path: hashlib.sha256(content).hexdigest() for path, content in files.items()
    }
    assert done["bytes"] == sum(map(len, files.values()))
    return folder


def test_a_folder_of_images_is_prepared_once_and_a_run_trains_from_it(
    images: Path, results: Path, tmp_path: Path
) -> None:
    raw = shutil.copytree(images, tmp_path / "raw")
    arguments = ("--dataset", raw, "--name", "pets", "--to", results)
    code, output = run(*arguments)
    assert code == 0, output
    folder = prepared(results)
    done = json.loads((folder / "DONE.json").read_text())
    assert done["samples"] == {"train": 20, "test": 6} and done["revision"] is None
    assert done["source"] == str(raw) and done["versions"]["datasets"] == datasets.__version__
    before = open_data(Config(run="x", dataset_path=str(raw)), 16)
    shutil.rmtree(raw)  # nothing may point back to it
    after = open_data(Config(run="x", dataset_path=str(folder)), 16)
    assert after.sha256 == before.sha256 and len(after.test) == 6
    stamp = (folder / "DONE.json").stat().st_mtime_ns
    (tmp_path / "raw").mkdir()
    code, output = run(*arguments)
    assert code == 0 and "is there: dataset" in output and "preparing" not in output
    assert (folder / "DONE.json").stat().st_mtime_ns == stamp

    env = {
        "TRAINER_RUN": "a", "TRAINER_RESULTS": str(results), "TRAINER_DATASET_PATH": str(folder), "TRAINER_STEPS": "3",
        "TRAINER_MODEL": "cnn", "TRAINER_PROFILE_STEPS": "0", "TRAINER_GLOBAL_BATCH_SIZE": "8",
        "TRAINER_MICRO_BATCH_SIZE": "8", "TRAINER_IMAGE_SIZE": "16", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    trained = subprocess.run(
        [find_python(), "-m", "trainer"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert trained.returncode == 0, trained.stderr
    summary = json.loads((results / "default" / "a" / "summary.json").read_text())
    assert summary["steps"] == 3 and summary["dataset"] == "pets"


def test_saved_data_sets_keep_their_splits(images: Path, results: Path, tmp_path: Path) -> None:
    datasets.load_dataset(str(images), cache_dir=str(tmp_path / "cache"))["train"].save_to_disk(
        str(tmp_path / "one")
    )
    assert run("--dataset", tmp_path / "one", "--name", "pets", "--to", results)[0] == 0
    assert json.loads((prepared(results) / "DONE.json").read_text())["samples"] == {"train": 20}


def test_two_at_once_do_the_work_once(slow_images: Path, results: Path) -> None:
    arguments = ("--dataset", slow_images, "--name", "pets", "--to", results)
    both = [start(*arguments), start(*arguments)]
    outputs = [finish(process) for process in both]
    assert [code for code, _ in outputs] == [0, 0], outputs
    worked = ["preparing dataset" in output for _, output in outputs]
    assert sorted(worked) == [False, True], outputs
    (waited,) = [output for _, output in outputs if "preparing dataset" not in output]
    assert "is at it" in waited and "is there: dataset" in waited
    prepared(results)


def test_slow_work_is_not_taken_for_dead(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the source that takes longer than a lock may be silent; two starts, as threads."""
    calls, said = [], []

    def write_slowly(request: Request, folder: Path, *_: Any) -> Written:
        calls.append(request)
        time.sleep(4)
        (folder / "file").touch()
        return Written(None, {"train": 1}, None)

    monkeypatch.setattr("trainer.prepare.work.write_source", write_slowly)
    request = Request("dataset", "org/pets", "pets", results, "", "", stale_after_s=1.5)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(prepare, request, said.append) for _ in range(2)]
        assert both[0].result() == both[1].result()
    assert len(calls) == 1, said
    prepared(results)


def is_writing(results: Path) -> bool:
    return any(path.stat().st_size > 0 for path in results.glob("_prepared/.pets.partial-*/**/*.arrow"))


def test_a_killed_start_is_taken_over(slow_images: Path, results: Path) -> None:
    arguments = ("--dataset", slow_images, "--name", "pets", "--to", results, "--stale-after-s", "2")
    first = start(*arguments)
    wait_for(lambda: is_writing(results))
    first.send_signal(signal.SIGKILL)
    finish(first)
    assert not (results / "_prepared" / "pets").exists()
    started = time.monotonic()
    code, output = run(*arguments)
    assert code == 0, output
    assert "gave no sign of life for 2 s, taking over" in output
    assert "removing what a dead start has left" in output
    assert time.monotonic() - started > 2
    prepared(results)


def test_a_start_that_was_only_paused_harms_nothing(slow_images: Path, results: Path) -> None:
    """Stopped, taken for dead, outnumbered, then continued: it finds the other one's work."""
    arguments = ("--dataset", slow_images, "--name", "pets", "--to", results, "--stale-after-s", "2")
    paused = start(*arguments)
    wait_for(lambda: is_writing(results))
    paused.send_signal(signal.SIGSTOP)
    code, output = run(*arguments)
    assert code == 0 and "taking over" in output, output
    stamp = (results / "_prepared" / "pets" / "DONE.json").stat().st_mtime_ns
    paused.send_signal(signal.SIGCONT)
    code, output = finish(paused)
    assert code == 0 and "another start has taken over" in output, output
    assert (prepared(results) / "DONE.json").stat().st_mtime_ns == stamp


def test_sigterm_leaves_nothing_behind(slow_images: Path, results: Path) -> None:
    process = start("--dataset", slow_images, "--name", "pets", "--to", results)
    wait_for(lambda: is_writing(results))
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    assert list((results / "_prepared").iterdir()) == []


@pytest.mark.parametrize("kind", ["images", "parquet"])
def test_a_full_volume(results: Path, tmp_path: Path, kind: str) -> None:
    """On a file system of one MiB, in namespaces of its own so that no right is needed.

    Images fill it when they are saved, a parquet file already when it is opened.
    """
    private = ("unshare", "--user", "--map-root-user", "--mount")
    if subprocess.run([*private, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine has no user namespaces, so no small file system can be mounted")
    large = tmp_path / "large"
    if kind == "images":
        write_images(large, train=150, test=2, size=64)  # 1.8 MiB
    else:
        large.mkdir()
        noise = np.random.default_rng(0).random(250_000)  # 2 MB
        datasets.Dataset.from_dict({"x": noise}).to_parquet(str(large / "train.parquet"))
    mount = (
        f'mount -t tmpfs -o size=1m none {results} && "$@"; code=$?; ls -A {results}/_prepared; exit $code'
    )
    code, output = run(
        "--dataset", large, "--name", "pets", "--to", results, before=(*private, "sh", "-c", mount, "sh")
    )
    assert code == 13, output
    assert "storage full" in output and ".pets" not in output.split("storage full")[1].splitlines()[-1], (
        output
    )


def test_a_wrapped_error_of_the_disk_is_found() -> None:
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError as failure:
            raise RuntimeError("generating the data set failed") from failure
    except RuntimeError as failure:
        found = find_os_error(failure)
    assert found is not None and exit_code(found) == 13


def test_the_name_is_taken(images: Path, results: Path, tmp_path: Path) -> None:
    assert run("--dataset", images, "--name", "pets", "--to", results)[0] == 0
    other = write_images(tmp_path / "other", train=4, test=2)
    code, output = run("--dataset", other, "--name", "pets", "--to", results)
    assert code == 2 and f"holds dataset {images}" in output and "choose another --name" not in output, output
    (results / "_prepared" / "mine").mkdir()
    (results / "_prepared" / "mine" / "file").touch()
    code, output = run("--dataset", images, "--name", "mine", "--to", results)
    assert code == 2 and "was not made by prepare" in output


def test_a_damaged_folder_is_not_called_done(images: Path, results: Path) -> None:
    arguments = ("--dataset", images, "--name", "pets", "--to", results)
    assert run(*arguments)[0] == 0
    file = next((results / "_prepared" / "pets").rglob("*.arrow"))
    os.truncate(file, 10)
    code, output = run(*arguments)
    assert code == 3 and file.name in output


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    rows = {
        "image": [{"bytes": png(i), "path": None} for i in range(10)],
        "label": [i % 2 for i in range(10)],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    parquet = io.BytesIO()
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(parquet)
    weights = save({"w": np.zeros((3, 4), np.float32), "b": np.zeros(3, np.float32)})
    index = json.dumps({"weight_map": {"w": "part-1.safetensors"}}).encode()
    repositories = {
        "datasets/org/pets": {"data/train-00000-of-00001.parquet": parquet.getvalue()},
        "models/org/net": {
            "config.json": b"{}",
            "model.safetensors": weights,
            "pytorch_model.bin": b"pickle",
        },
        "models/org/pickle": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
        "models/org/broken": {"config.json": b"{}", "model.safetensors": weights[:-5]},
        "models/org/part": {
            "config.json": b"{}",
            "a.safetensors": weights,
            "a.safetensors.index.json": index,
        },
    }
    with run_fake_hub(repositories) as endpoint:
        yield endpoint


def test_a_data_set_of_the_hub(hub: str, results: Path) -> None:
    arguments = ("--dataset", "org/pets", "--name", "pets", "--to", results)
    code, output = run(*arguments, env={"HF_ENDPOINT": hub})
    assert code == 0, output
    done = json.loads((prepared(results) / "DONE.json").read_text())
    assert done["revision"] == COMMIT and done["asked_revision"] == "" and done["samples"] == {"train": 10}
    assert len(open_data(Config(run="x", dataset_path=str(results / "_prepared" / "pets")), 16).test) == 2
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert run(*arguments, "--revision", COMMIT, env=nowhere)[0] == 0, "the same commit by its name"
    assert run(*arguments, "--revision", "v2", env=nowhere)[0] == 2, "another revision"


def test_a_model_of_the_hub_without_its_pickles(hub: str, results: Path) -> None:
    code, output = run("--model", "org/net", "--name", "pets", "--to", results, env={"HF_ENDPOINT": hub})
    assert code == 0 and "15 parameters" in output, output
    folder = prepared(results)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "DONE.json"}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--dataset", "org/none"), 3, "org/none"),
        (("--dataset", "org/pets", "--revision", "v9"), 3, "Revision Not Found"),
        (("--dataset", "org/pets", "--subset", "v9"), 3, "'v9' not found"),
        (("--model", "org/pickle"), 3, "holds no *.safetensors"),
        (("--model", "org/broken"), 3, "cannot be read"),
        (("--model", "org/part"), 3, "names part-1.safetensors"),
    ],
)
def test_what_the_hub_does_not_have(
    hub: str, results: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    found, output = run(*arguments, "--name", "x", "--to", results, env={"HF_ENDPOINT": hub})
    assert (found, text in output) == (code, True), output
    assert list((results / "_prepared").iterdir()) == []


def test_a_hub_that_does_not_answer_is_worth_another_try(results: Path) -> None:
    code, output = run(
        "--dataset", "org/pets", "--name", "x", "--to", results, env={"HF_ENDPOINT": "http://127.0.0.1:9"}
    )
    assert code == 1 and "onnect" in output, output
    assert "no answer (exit code 1)" in output and "crashed" not in output
    assert "the hub cannot be reached from here" in output and "manifests/components/hub-access" in output


def test_a_broken_picture_is_found_wherever_it_lies(images: Path, results: Path, tmp_path: Path) -> None:
    raw = shutil.copytree(images, tmp_path / "raw")
    cut = raw / "train" / "dog" / "7.png"
    cut.write_bytes(cut.read_bytes()[:200])
    code, output = run("--dataset", raw, "--name", "x", "--to", results)
    assert code == 3 and f"'{raw}': train sample" in output and "cannot be decoded" in output, output
    assert f"({cut})" in output and "remove or replace the file" in output
    assert not list((results / "_prepared").glob("[!.]*")), "nothing is called done"


def test_pictures_without_classes_are_refused(results: Path, tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for index in range(4):
        (tmp_path / "flat" / f"{index}.png").write_bytes(png(index))
    code, output = run("--dataset", tmp_path / "flat", "--name", "x", "--to", results)
    assert code == 3 and "one folder per class, two classes at least" in output, output


def test_a_folder_without_a_data_set(results: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "absent"):
        code, output = run("--dataset", path, "--name", "x", "--to", results)
        assert code == 3 and str(path) in output, output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--dataset"),
        (("--dataset", "a/b", "--model", "a/b"), "not allowed with"),
        (("--dataset", "a/b", "--nam", "y"), "--nam"),
        (("--dataset", "a/b", "--splits", "y"), "--splits"),
        (("--dataset", "a b"), "neither a path"),
        (("--dataset", "a/../b"), "neither a path"),
        (("--dataset", "digits"), "nothing to prepare"),
        (("--model", "/data/net"), "needs no preparing"),
        (("--dataset", "/data/pets", "--revision", "v1"), "--revision"),
        (("--model", "a/b", "--subset", "v1"), "a model has none"),
        (("--dataset", "a/b", "--stale-after-s", "0"), "from 1 to 3600"),
        (("--dataset", "a/b", "--name", "../b"), "--name"),
        (("--dataset", "a/b", "--name", ".b"), "--name"),
        (("--dataset", "a/b", "--to", "/nowhere"), "is the results volume mounted?"),
    ],
)
def test_wrong_settings(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=".") as caught:
        read_request(["--name", "x", "--to", str(tmp_path), *arguments])
    assert text in str(caught.value)


def test_every_problem_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_request(["--dataset", "a b", "--name", "..", "--to", str(tmp_path / "x")])
    assert len(caught.value.problems) == 3


def test_help_has_an_example() -> None:
    code, output = run("--help")
    assert code == 0 and "python -m trainer.prepare --dataset microsoft/cats_vs_dogs" in output


def test_locks_are_taken_by_number(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    first = acquire(folder, 1, stale_after_s=10)
    assert first is not None and acquire(folder, 1, stale_after_s=10) is None
    seen = observe(folder, None, 100.0, 99)
    assert seen is not None and seen.number == 1 and seen.stale_after_s == 10
    later = observe(folder, seen, 110.5, 99)
    assert later is not None and later.is_stale(110.5) and not later.is_stale(109.5)
    first.beat()
    alive = observe(folder, later, 111.0, 99)
    assert alive is not None and not alive.is_stale(120.9)

    second = acquire(folder, 2, stale_after_s=10)
    assert second is not None
    first.beat()
    with pytest.raises(Overtaken):
        first.check()
    first.release()
    second.check()  # still there
    second.release()
    assert not folder.exists()


def test_a_lock_whose_number_is_used_again(tmp_path: Path) -> None:
    """Paused, outnumbered, everything cleared away, number 1 taken by a third one: still not the owner's."""
    first = acquire(tmp_path / "locks", 1, 10)
    second = acquire(tmp_path / "locks", 2, 10)
    assert first is not None and second is not None
    second.release()
    third = acquire(tmp_path / "locks", 1, 10)
    assert third is not None
    first.release()
    third.check()
    with pytest.raises(Overtaken):
        first.check()


def test_a_lock_that_was_never_written_goes_stale_too(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    seen = observe(tmp_path, None, 0.0, stale_after_s=5)
    assert seen is not None and seen.owner == "unknown" and seen.is_stale(5.1)


def test_the_rename_has_one_winner(tmp_path: Path) -> None:
    place = Place(tmp_path, "pets")
    for token in ("a", "b"):
        place.partial(token).mkdir(parents=True)
        (place.partial(token) / "file").write_text(token)
    publish(place, place.partial("a"))
    with pytest.raises(Overtaken):
        publish(place, place.partial("b"))
    assert (place.folder / "file").read_text() == "a"

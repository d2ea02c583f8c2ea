"""`python -m trainer.prepare` as a process: images and tokens."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config
from tests.trainer.data.text.token_caches import build, text_config, write_jsonl
from tests.trainer.fake_hub import COMMIT, run_fake_hub
from trainer.data import open_data
from trainer.data.text.token_cache import cache_folder, cache_name
from trainer.data.text.token_rows import open_text
from trainer.prepare.preparation import ensure_cache

PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def png(seed: int, size: int = 16) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_images(folder: Path, train: int, test: int, size: int = 16) -> Path:
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
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, text=True, stdout=pipe, stderr=subprocess.STDOUT, env=clean | (env or {})
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


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def prepared(results: Path, name: str = "pets") -> Path:
    """The prepared folder, which is whole; nothing but it is left."""
    folder = results / "_prepared" / name
    assert [path.name for path in folder.parent.iterdir()] == [name]
    done = json.loads((folder / "DONE.json").read_text())
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    del files["DONE.json"]
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    assert {e["path"]: e["sha256"] for e in done["files"]} == hashes
    assert done["bytes"] == sum(map(len, files.values()))
    return folder


def test_a_folder_of_images_is_prepared_once_and_nothing_points_back_to_it(results, tmp_path):
    raw = write_images(tmp_path / "raw", train=20, test=6)
    arguments = ("--dataset", raw, "--name", "pets", "--to", results)
    code, output = run(*arguments)
    assert code == 0, output
    folder = prepared(results)
    done = json.loads((folder / "DONE.json").read_text())
    assert done["samples"] == {"train": 20, "test": 6} and done["revision"] is None
    assert done["source"] == str(raw) and done["versions"]["datasets"] == datasets.__version__
    before = open_data(Config(run="x", dataset_path=str(raw)), 16)
    shutil.rmtree(raw)
    after = open_data(Config(run="x", dataset_path=str(folder)), 16)
    assert after.sha256 == before.sha256 and len(after.test) == 6
    stamp = (folder / "DONE.json").stat().st_mtime_ns
    raw.mkdir()
    assert run(*arguments)[0] == 0 and (folder / "DONE.json").stat().st_mtime_ns == stamp
    other = write_images(tmp_path / "other", train=4, test=2)
    code, output = run("--dataset", other, "--name", "pets", "--to", results)
    assert code == 2 and str(raw) in output, "the name is taken"
    file = next(folder.rglob("*.arrow"))
    os.truncate(file, 10)
    code, output = run(*arguments)
    assert code == 3 and file.name in output, "a damaged folder is not called done"


def test_a_data_set_and_a_model_of_the_hub(results):
    rows = {
        "image": [{"bytes": png(i), "path": None} for i in range(10)],
        "label": [i % 2 for i in range(10)],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    parquet = io.BytesIO()
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(parquet)
    weights = save({"w": np.zeros((3, 4), np.float32), "b": np.zeros(3, np.float32)})
    net = {"config.json": b"{}", "model.safetensors": weights, "pytorch_model.bin": b"pickle"}
    pets = {"data/train-00000-of-00001.parquet": parquet.getvalue()}
    with run_fake_hub({"datasets/org/pets": pets, "models/org/net": net}) as endpoint:
        arguments = ("--dataset", "org/pets", "--name", "pets", "--to", results)
        code, output = run(*arguments, env={"HF_ENDPOINT": endpoint})
        assert code == 0, output
        done = json.loads((prepared(results) / "DONE.json").read_text())
        assert done["revision"] == COMMIT and done["samples"] == {"train": 10}
        (results / "models").mkdir()
        model = ("--model", "org/net", "--name", "net", "--to", results / "models")
        code, output = run(*model, env={"HF_ENDPOINT": endpoint})
        assert code == 0 and " 15 " in output, output
        folder = prepared(results / "models", "net")
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "DONE.json"}
    assert len(open_data(Config(run="x", dataset_path=str(results / "_prepared" / "pets")), 16).test) == 2
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert run(*arguments, "--revision", COMMIT, env=nowhere)[0] == 0, "the same commit by its name"
    assert run(*arguments, "--revision", "v2", env=nowhere)[0] == 2, "another revision"
    other = ("--dataset", "org/others", "--name", "x", "--to", results)
    assert run(*other, env=nowhere)[0] == 1, "worth another try"


def test_what_cannot_be_prepared_is_named_and_not_called_done(results, tmp_path):
    raw = write_images(tmp_path / "raw", train=20, test=6)
    cut = raw / "train" / "dog" / "7.png"
    cut.write_bytes(cut.read_bytes()[:200])
    code, output = run("--dataset", raw, "--name", "x", "--to", results)
    assert code == 3 and f"({cut})" in output, output
    with run_fake_hub({"models/org/pickle": {"config.json": b"{}", "pytorch_model.bin": b""}}) as endpoint:
        model = ("--model", "org/pickle", "--name", "x", "--to", results)
        code, output = run(*model, env={"HF_ENDPOINT": endpoint})
    assert code == 3 and "*.safetensors" in output, output
    assert not list((results / "_prepared").glob("[!.]*"))


def questions(count: int) -> list[dict[str, str]]:
    return [{"query": f"{i}+1?", "response": f"{i + 1}", "original_question": f"o{i}"} for i in range(count)]


def files(folder: Path) -> dict[str, bytes]:
    """Of a cache, but for DONE.json, which holds the time."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    done = json.loads(found.pop("DONE.json"))
    assert {entry["path"] for entry in done["files"]} == set(found)
    return found


def test_two_starts_at_once_make_one_cache_and_a_third_elsewhere_the_same_bytes(results, tmp_path):
    path = write_jsonl(tmp_path / "math" / "train.jsonl", questions(200)).parent
    arguments = ("--dataset", path, "--tokenize", "qwen_tiny", "--seq-len", "64", "--no-packing")
    arguments += ("--train-samples", "50", "--validation-fraction", "0.2", "--to", results)
    outputs = [finish(process) for process in [start(*arguments), start(*arguments)]]
    assert [code for code, _ in outputs] == [0, 0], outputs
    given = {"dataset_path": str(path), "seq_len": 64, "packing": False, "train_samples": 50}
    given |= {"validation_fraction": 0.2}
    config = text_config(results, **given)
    assert [place.name for place in (results / "_prepared").iterdir()] == [cache_name(config)]
    data = open_text(config)  # a run with these settings finds it
    samples = json.loads((data.folder / "DONE.json").read_text())["samples"]
    assert samples == {"train": 50, "validation": 38, "test": 10} and not data.train.packed
    other = build(text_config(tmp_path / "elsewhere", **given))
    assert files(other.folder) == files(cache_folder(config)) and other.sha256 == data.sha256


def test_the_launcher_makes_it_or_finds_it_without_torch(results, tmp_path):
    path = write_jsonl(tmp_path / "math" / "train.jsonl", questions(100)).parent
    code = f"""
import sys
from stratlab_spec.settings.config import Config
from trainer.data.text.token_rows import text_problems
from trainer.prepare.preparation import ensure_cache
config = Config(run="x", model="qwen_tiny", results={str(results)!r}, dataset_path={str(path)!r}, seq_len=64)
assert text_problems(config) == []
print(ensure_cache(config, lambda text: None))
print(*sorted({{"torch", "transformers"}} & set(sys.modules)), sep=", ")
"""
    for attempt in (1, 2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        rows, opened = done.stdout.split("\n")[:2]
        assert int(rows) == len(open_text(text_config(results, dataset_path=str(path), seq_len=64)).train)
        assert bool(opened) == (attempt == 1), "a second start opens nothing"


def test_a_damaged_cache_is_not_used_and_progress_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.prepare.preparation.PROGRESS_S", 0.02)
    said: list[str] = []
    config = text_config(tmp_path)
    assert ensure_cache(config, said.append) > 1000
    assert any(re.search(r"\d+ s, train: \d+ of \d+ ", line) for line in said), said
    (cache_folder(config) / "train-rows.npy").write_bytes(b"short")
    with pytest.raises(DataMissing) as missing:
        ensure_cache(config, lambda text: None)
    assert "train-rows.npy" in str(missing.value)

"""`python -m trainer.prepare --tokenize` and what the launcher does instead: real processes on a real folder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stratlab_spec.exit_codes import DataMissing
from tests.trainer.data.text.token_caches import build, text_config, write_jsonl
from tests.trainer.fake_hub import COMMIT, run_fake_hub
from tests.trainer.processes.test_prepare import finish, run, start
from trainer.data.text.token_cache import cache_folder, cache_name
from trainer.data.text.token_rows import open_text
from trainer.data.text.tokenizer import build_byte_tokenizer
from trainer.prepare.preparation import ensure_cache


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


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


@pytest.mark.parametrize("setting", ["seq_len", "packing", "tokenizer", "data"])
def test_whatever_the_content_depends_on_is_in_the_name_and_nothing_else(tmp_path, setting):
    path = write_jsonl(tmp_path / "a" / "math" / "train.jsonl", questions(20))
    build_byte_tokenizer().save_pretrained(tmp_path / "words")
    config = text_config(tmp_path, dataset_path=str(path.parent), tokenizer=str(tmp_path / "words"))
    before = cache_name(config)
    for change in ({"seed": 9}, {"strategy": "ddp"}, {"global_batch_size": 8}, {"tp": 2}):
        assert cache_name(config.model_copy(update=change)) == before
    shutil.copytree(path.parent, tmp_path / "b" / "math")  # the volume under another path; copies the times
    assert cache_name(config.model_copy(update={"dataset_path": str(tmp_path / "b" / "math")})) == before
    if setting == "data":
        write_jsonl(path, questions(21))
    elif setting == "tokenizer":
        (tmp_path / "words" / "chat_template.jinja").write_text("{{ messages }}")
    else:
        config = config.model_copy(update={setting: {"seq_len": 64, "packing": False}[setting]})
    assert cache_name(config) != before


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


def test_metamathqa_of_the_hub(results):
    """A fake of the hub with one file of its name and form. The cache pins the commit that it found."""
    content = json.dumps(questions(100)).encode()
    with run_fake_hub({"datasets/meta-math/MetaMathQA": {"MetaMathQA-395K.json": content}}) as endpoint:
        arguments = ("--tokenize", "qwen_tiny", "--seq-len", "64", "--to", results)
        code, output = run("--dataset", "metamathqa", *arguments, env={"HF_ENDPOINT": endpoint})
        assert code == 0, output
    config = text_config(results, dataset="metamathqa", seq_len=64)
    done = json.loads((cache_folder(config) / "DONE.json").read_text())
    assert done["revision"] == COMMIT and sum(done["samples"].values()) == 100
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    code, output = run("--dataset", "meta-math/MetaMathQA", *arguments, env=nowhere)
    assert code == 0, output  # the same data set by its other name, without a network
    assert [path.name for path in (results / "_prepared").iterdir()] == [cache_name(config)]


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

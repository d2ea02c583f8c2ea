"""`python -m trainer.prepare --tokenize` and what the launcher does instead: real processes on a real folder."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.data.text.token_caches import build, text_config, write_jsonl
from tests.trainer.fake_hub import COMMIT, run_fake_hub
from tests.trainer.processes.test_prepare import finish, run, start, wait_for
from trainer.data.text.cache import cache_folder, cache_name
from trainer.data.text.rows import open_text
from trainer.data.text.tokenizer import build_byte_tokenizer
from trainer.failures import DataMissing
from trainer.prepare.before_ranks import ensure_cache
from trainer.prepare.request import read_request
from trainer.settings.config import ConfigError


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


def test_two_starts_at_once_make_one_cache_and_a_third_elsewhere_the_same_bytes(
    results: Path, tmp_path: Path
) -> None:
    arguments = ("--dataset", "arithmetic", "--tokenize", "qwen_tiny", "--seq-len", "256", "--to")
    both = [start(*arguments, results), start(*arguments, results)]
    outputs = [finish(process) for process in both]
    assert [code for code, _ in outputs] == [0, 0], outputs
    assert sorted("preparing tokens" in output for _, output in outputs) == [False, True], outputs
    config = text_config(results, seq_len=256)
    assert [path.name for path in (results / "_prepared").iterdir()] == [cache_name(config)]
    assert len(open_text(config).train) > 100, "a run with these settings finds it"
    other = build(text_config(tmp_path / "elsewhere", seq_len=256))
    assert files(other.folder) == files(cache_folder(config))
    assert other.sha256 == open_text(config).sha256


def test_options_are_the_settings_of_a_run(results: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "math" / "train.jsonl", questions(200)).parent
    code, output = run(
        "--dataset",
        path,
        "--tokenize",
        "qwen_moe_tiny",
        "--seq-len",
        "64",
        "--no-packing",
        "--train-samples",
        "50",
        "--validation-fraction",
        "0.2",
        "--to",
        results,
    )
    assert code == 0, output
    assert "50 train, 38 validation, 10 test samples" in output
    settings = {"dataset_path": str(path), "seq_len": 64, "packing": False, "train_samples": 50}
    config = text_config(results, **settings, validation_fraction=0.2)
    data = open_text(config)
    assert len(data.train) == 50 and not data.train.packed
    assert json.loads((data.folder / "DONE.json").read_text())["samples"]["train"] == 50


@pytest.mark.parametrize(
    "setting", ["seq_len", "packing", "validation_fraction", "train_samples", "tokenizer", "data"]
)
def test_whatever_the_content_depends_on_is_in_the_name(tmp_path: Path, setting: str) -> None:
    path = write_jsonl(tmp_path / "math" / "train.jsonl", questions(20))
    build_byte_tokenizer().save_pretrained(tmp_path / "words")
    config = text_config(tmp_path, dataset_path=str(path.parent), tokenizer=str(tmp_path / "words"))
    before = cache_name(config)
    changed = {"seq_len": 64, "packing": False, "validation_fraction": 0.3, "train_samples": 9}
    if setting == "data":
        write_jsonl(path, questions(21))
    elif setting == "tokenizer":
        (tmp_path / "words" / "chat_template.jinja").write_text("{{ messages }}")
    else:
        config = config.model_copy(update={setting: changed[setting]})
    assert cache_name(config) != before


def test_what_the_content_does_not_depend_on_is_not_in_the_name(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a" / "math" / "train.jsonl", questions(20)).parent
    config = text_config(tmp_path, dataset_path=str(path))
    before = cache_name(config)
    for change in ({"seed": 9}, {"strategy": "ddp"}, {"global_batch_size": 8}, {"dp_shard": 4}, {"tp": 2}):
        assert cache_name(config.model_copy(update=change)) == before
    shutil.copytree(path, tmp_path / "b" / "math")  # the volume under another path; copies the times
    moved = config.model_copy(update={"dataset_path": str(tmp_path / "b" / "math")})
    assert cache_name(moved) == before


def test_a_prepared_data_set_is_tokenised_from_the_volume(results: Path, tmp_path: Path) -> None:
    raw = write_jsonl(tmp_path / "raw" / "train.jsonl", questions(100)).parent
    assert run("--dataset", raw, "--name", "math", "--to", results)[0] == 0
    folder = results / "_prepared" / "math"
    config = text_config(results, dataset_path=str(folder))
    name = cache_name(config)
    for path in folder.rglob("*"):
        path.touch()  # its hash counts, not its times
    assert cache_name(config) == name
    code, output = run("--dataset", folder, "--tokenize", "qwen_tiny", "--seq-len", "128", "--to", results)
    assert code == 0 and len(open_text(config).test) >= 1, output


def test_the_launcher_makes_it_or_finds_it_without_torch(results: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "math" / "train.jsonl", questions(100)).parent
    code = f"""
import sys
from trainer.settings.config import Config
from trainer.data.text.problems import text_problems
from trainer.prepare.before_ranks import ensure_cache
config = Config(run="x", model="qwen_tiny", results={str(results)!r}, dataset_path={str(path)!r}, seq_len=64)
assert text_problems(config) == []
print(ensure_cache(config, print))
print(*sorted({{"torch", "transformers"}} & set(sys.modules)), sep=", ")
"""
    library = "import sys; from transformers import PreTrainedTokenizerFast; print('torch' in sys.modules)"
    brings = subprocess.run([sys.executable, "-c", library], capture_output=True, text=True, check=True)
    made = "torch, transformers" if brings.stdout == "True\n" else "transformers"  # as 5.17 does
    for word, opened in (("is done", made), ("is there", "")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        rows = len(open_text(text_config(results, dataset_path=str(path), seq_len=64)).train)
        assert word in done.stdout and f"\n{rows}\n" in done.stdout
        assert done.stdout.splitlines()[-1] == opened, "a second start opens nothing"


def test_metamathqa_of_the_hub(results: Path) -> None:
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
    assert code == 0 and "is there" in output, "the same data set by its other name, without a network"
    assert [path.name for path in (results / "_prepared").iterdir()] == [cache_name(config)]


def test_what_cannot_be_tokenised_leaves_nothing(results: Path, tmp_path: Path) -> None:
    wrong = write_jsonl(tmp_path / "wrong" / "train.jsonl", [{"question": "a", "answer": "b"}] * 9).parent
    arguments = ("--tokenize", "qwen_tiny", "--seq-len", "64", "--to", results)
    code, output = run("--dataset", wrong, *arguments)
    assert code == 2 and "no column query and no column response" in output, output
    code, output = run("--dataset", tmp_path / "nowhere", *arguments)
    assert code == 3 and "no such folder" in output
    good = write_jsonl(tmp_path / "good" / "train.jsonl", questions(99)).parent
    code, output = run("--dataset", good, "--tokenize", "qwen_tiny", "--seq-len", "8", "--to", results)
    assert code == 2 and "--seq-len=8: no document" in output, output
    code, output = run("--dataset", good, "--tokenize", tmp_path, "--seq-len", "64", "--to", results)
    assert code == 3 and "no tokenizer.json" in output
    assert list((results / "_prepared").iterdir()) == []


def test_every_wrong_option_is_named(tmp_path: Path) -> None:
    def problems(*arguments: str) -> list[str]:
        with pytest.raises(ConfigError) as error:
            read_request([*arguments, "--to", str(tmp_path)])
        return error.value.problems

    tokens = ("--dataset", "arithmetic", "--tokenize", "qwen_tiny")
    found = problems(*tokens, "--name", "x", "--revision", "main", "--subset", "s", "--seq-len", "4")
    assert len(found) == 4 and found[0].startswith("--name: not with --tokenize")
    assert found[3].startswith("--seq-len 4: expected a whole number from 8 to")
    assert problems("--model", "org/net", "--tokenize", "qwen_tiny") == [
        "--model: not with --tokenize, whose folder is named after its content",
        "--tokenize: --dataset is missing",
    ]
    found = problems("--dataset", "org/pets", "--name", "x", "--seq-len", "64", "--no-packing")
    assert found == ["--seq-len, --no-packing: only with --tokenize"]
    assert problems("--dataset", "org/pets") == ["--name: is missing; it names the folder"]


def test_a_killed_start_is_taken_over(results: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "math" / "train.jsonl", questions(6000)).parent
    arguments = ("--dataset", path, "--tokenize", "qwen_tiny", "--seq-len", "64", "--train-samples", "0")
    first = start(*arguments, "--to", results, "--stale-after-s", "2")
    wait_for(
        lambda: any(
            file.stat().st_size for file in results.glob("_prepared/.tokens-*.partial-*/**/train.ids")
        )
    )
    first.send_signal(signal.SIGKILL)
    finish(first)
    write_size = len(list((results / "_prepared").iterdir()))
    assert write_size == 2, "its lock and what it had written"
    code, output = run(*arguments, "--to", results, "--stale-after-s", "2")
    assert code == 0 and "gave no sign of life for 2 s, taking over" in output, output
    assert len(list((results / "_prepared").iterdir())) == 1


def test_a_damaged_cache_is_not_used(tmp_path: Path) -> None:
    config = text_config(tmp_path, train_samples=50)
    folder = build(config).folder
    (folder / "train-rows.npy").write_bytes(b"short")
    with pytest.raises(DataMissing, match="train-rows.npy: gone or of another size"):
        ensure_cache(config, lambda text: None)


def test_progress_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.prepare.work.PROGRESS_S", 0.02)
    said: list[str] = []
    rows = ensure_cache(text_config(tmp_path), said.append)
    assert rows > 1000
    found = [re.search(r"MiB written, \d+ s, train: \d+ of \d+ documents tokenised", line) for line in said]
    assert any(found), said

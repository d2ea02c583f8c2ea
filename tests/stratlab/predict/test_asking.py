"""A model as a user names it: a preset, a variant with its sizes, a config.json."""

import io
import json
import sys
from pathlib import Path

import pytest

from stratlab import UserError
from stratlab.commands import open_console
from stratlab.predict import FIELDS
from stratlab.predict.asking import ask_of_model, find_model
from stratlab.predict.counting import name_count
from tests.codes import find_codes

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 1024,
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write(**values):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | values))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("named", "preset"),
    [
        ("GPT2", "gpt2"),
        ("Qwen/Qwen2.5-3B", "qwen2.5-3b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("google/vit-base-patch16-224-in21k", "vit_base"),
    ],
)
def test_a_variant_with_a_preset_s_sizes_is_answered_by_it(named, preset):
    found = find_model(named)
    assert found.settings == {"model": preset} and bool(found.origin) == (named.lower() != preset)
    assert ask_of_model(named, 1, [])[0].origin == found.origin


@pytest.mark.parametrize(
    "named",
    [
        "mistralai/Mistral-7B-v0.1",  # a smaller vocabulary
        "microsoft/Phi-3-mini-128k-instruct",  # positions that are not trained
        "Qwen/Qwen2.5-3B-Instruct-AWQ",
        "somebody/Llama-3.1-8B",
        "Qwen/Qwen2.5-14B",
        "x" * 300,
    ],
)
def test_a_model_of_other_sizes_is_not(named):
    with pytest.raises(UserError) as caught:
        find_model(named)
    assert find_codes(caught.value) == ["SL-predict-model"]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"vocab_size": "1000"}, "decoder-json-number"),
        ({"quantization_config": {"bits": 4}}, "predict-quantized"),
        ({"text_config": {"model_type": "vit"}, "num_channels": 3}, "predict-image-json"),
    ],
)
def test_a_config_json_that_is_not_trained_is_refused_once(write, values, code):
    for place in (folder := write(**values), folder / "config.json"):
        with pytest.raises(UserError) as caught:
            ask_of_model(str(place), 8, [])
        assert find_codes(caught.value) == [f"SL-{code}"]


def test_a_folder_is_read_under_its_own_name(write, tmp_path, monkeypatch):
    with pytest.raises(UserError) as caught:
        find_model(str(tmp_path))
    assert find_codes(caught.value) == ["SL-predict-no-json"]
    monkeypatch.chdir(write().parent)
    (Path.cwd() / "gpt2").symlink_to(tmp_path)
    found = find_model("gpt2")
    assert (
        found.settings == {"model_path": str(Path.cwd() / "gpt2"), "task": "text"}
        and "gpt2/config.json" in found.origin
    )


def test_rows_are_as_long_as_the_model_allows_and_its_count_has_them(write):
    [question] = ask_of_model(str(write(max_position_embeddings=512)), 8, ["strategy=fsdp"])
    assert question.settings["seq_len"] == "512" and "2048" not in name_count(question)
    assert ask_of_model("gpt2", 8, [])[0].settings["seq_len"] == "1024"
    assert ask_of_model("gpt2", 8, ["run.config.seq_len=64"])[0].settings["seq_len"] == "64"


@pytest.mark.parametrize(
    ("model", "given", "code"),
    [
        ("vit_huge", "strategy=nd", "nd-images"),
        ("gpt2", "model=vit_huge", "set-model"),
        ("gpt2", "seq_len=2048", "seq-len-above-model"),
    ],
)
def test_settings_that_do_not_suit_the_model_are_refused(call, model, given, code):
    strategy = () if "strategy" in given else ("--set", "strategy=fsdp")
    ended, _, err = call(model, "--set", given, *strategy)
    assert ended == 2 and {*find_codes(err)} == {f"SL-{code}"}


def test_every_row_of_json_has_the_same_keys(call):
    unknown, known = (json.loads(call("vit_huge", "--set", "strategy=ddp", *more, "--json")[1])
                      for more in (("--set", "reduce_dtype=bf16"), ()))  # fmt: skip
    assert list(known[0]) == list(FIELDS) and list(unknown[0]) == [*FIELDS, "reason"]
    assert unknown[0]["peak_gib"] is None and unknown[0]["strategy"] == "ddp"


def test_output_without_the_letters_of_its_lines_is_printed(call, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    open_console().print("\u2588")
    sys.stdout.flush()
    assert written.getvalue() == b"?\n"
    assert call("vit_huge", "--gpus", 10**8)[0] == 2


def test_a_page_is_whole_or_absent(call, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("before")
    (tmp_path / ".page.html.tmp").mkdir()
    code, _, err = call("vit_huge", "--set", "strategy=ddp", "--page", page)
    assert (code, find_codes(err), page.read_text()) == (2, ["SL-page-not-written"], "before")

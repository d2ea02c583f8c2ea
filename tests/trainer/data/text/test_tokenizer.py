from __future__ import annotations

import json
import shutil

import pytest

from stratlab_spec.exit_codes import DataMissing
from tests.codes import find_codes
from tests.trainer.data.text.token_caches import text_config
from trainer.data.text.token_rows import text_problems
from trainer.data.text.tokenizer import (
    build_byte_tokenizer,
    count_vocabulary,
    hash_tokenizer,
    identify_tokenizer,
    load_tokenizer,
    tokenizer_source,
)

CHAT = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


def test_a_byte_is_its_id():
    tokenizer, text = build_byte_tokenizer(), "Hello wörld\n 日本語 🙂 e\u0301 é \x00\x7f"
    assert tokenizer.encode(text) == list(text.encode()) and tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<|im_end|>a<|endoftext|><|im_start|>") == [258, 97, 256, 257]
    assert count_vocabulary(tokenizer) == 259


def test_without_a_template_of_its_own_it_gets_that_of_qwen_2_5_instruct(tmp_path):
    """What that makes of one question: its tokenizer_config.json, default system prompt."""
    build_byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(text_config(tmp_path, tokenizer=str(tmp_path)))
    system = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    )
    turns = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == f"{system}{turns}2<|im_end|>\n"
    asked = tokenizer.apply_chat_template(CHAT[:1], tokenize=False, add_generation_prompt=True)
    assert asked == system + turns
    own = tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}, *CHAT], tokenize=False)
    assert own.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?")


def test_the_tokenizer_s_own_template_is_used(tmp_path):
    build_byte_tokenizer().save_pretrained(tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "own")
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    (tmp_path / "own" / "chat_template.jinja").write_text(template)
    configs = [text_config(tmp_path, tokenizer=str(tmp_path / name)) for name in ("plain", "own")]
    plain, own = map(load_tokenizer, configs)
    assert own.apply_chat_template(CHAT, tokenize=False) == "[1+1?][2]"
    assert hash_tokenizer(own) != hash_tokenizer(plain) == hash_tokenizer(build_byte_tokenizer())
    assert identify_tokenizer(configs[0])["sha256"] != identify_tokenizer(configs[1])["sha256"]


def test_truncation_and_padding_of_the_file_are_undone(tmp_path):
    tokenizer = build_byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(text_config(tmp_path, tokenizer=str(tmp_path)))
    assert [e.ids for e in loaded.backend_tokenizer.encode_batch_fast(["abcdefg"])] == [list(b"abcdefg")]


def test_where_the_tokenizer_comes_from(tmp_path):
    for settings, source in (
        ({"model": "qwen_tiny"}, "bytes"),
        ({"model": "qwen2.5-3b"}, "Qwen/Qwen2.5-3B-Instruct"),
        ({"model": "org/net"}, "org/net"),
        ({"model": "qwen_tiny", "tokenizer": "org/words"}, "org/words"),
    ):
        assert tokenizer_source(text_config(tmp_path, **settings)) == source
    assert tokenizer_source(text_config(tmp_path).model_copy(update={"model_path": "/m"})) == "/m"


def test_a_tokenizer_that_is_not_to_be_had(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text(json.dumps({"model": 3}))
    empty = text_config(tmp_path).model_copy(update={"model_path": str(tmp_path)})
    absent, broken = (text_config(tmp_path, tokenizer=name) for name in ("/no/x", str(tmp_path / "broken")))
    for ask, config, code in (
        (load_tokenizer, empty, "SL-tokenizer-file-absent"),
        (identify_tokenizer, empty, "SL-tokenizer-file-absent"),
        (load_tokenizer, absent, "SL-tokenizer-folder-absent"),
        (load_tokenizer, broken, "SL-tokenizer-unloadable"),
    ):
        with pytest.raises(DataMissing) as failure:
            ask(config)
        assert find_codes(failure.value) == [code]
        assert f"TRAINER_TOKENIZER={config.tokenizer!r}" in str(failure.value)


def test_a_vocabulary_that_the_model_has_no_room_for(tmp_path):
    small = {"model": "qwen_tiny", "model_vocab": 200, "seq_len": 128}
    (said,) = text_problems(text_config(tmp_path, **small))
    assert find_codes(said) == ["SL-tokenizer-above-model"]
    for part in ("TRAINER_TOKENIZER='bytes'", " 259 ", " 200", "TRAINER_MODEL_VOCAB=259"):
        assert part in said
    assert text_problems(text_config(tmp_path, **small | {"model_vocab": 259})) == []


def test_images_are_no_text(tmp_path):
    (problem,) = text_problems(text_config(tmp_path, dataset="digits"))
    assert find_codes(problem) == ["SL-images-for-text"] and "TRAINER_DATASET='digits'" in problem

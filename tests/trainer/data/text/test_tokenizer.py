"""From a chat to token ids. What a template drops is told, and refused where it is much."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from stratlab_spec.exit_codes import DATA_MISSING, DataMissing, exit_code
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes, refuses
from tests.trainer.data.text.token_caches import (
    BYTE_TOKENS,
    COUNT,
    FOUR_TURNS,
    READ_FOUR_TURNS,
    Row,
    answer,
    chat,
    encode,
    every,
    lines,
    put,
    read,
    text_config,
    user,
    write_jsonl,
)
from trainer.data.text.documents import ALTERED, CONTROL, Tally, encode_texts
from trainer.data.text.text_source import load_texts
from trainer.data.text.token_rows import text_problems
from trainer.data.text.tokenizer import (
    build_byte_tokenizer,
    count_vocabulary,
    identify_tokenizer,
    load_tokenizer,
)
from trainer.prepare.preparation import ensure_cache

CHAT = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


def test_a_byte_is_its_id():
    tokenizer, text = build_byte_tokenizer(), "Hello wörld\n 日本語 🙂 e\u0301 é \x00\x7f"
    assert tokenizer.encode(text) == list(text.encode()) and tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<|im_end|>a<|endoftext|><|im_start|>") == [258, 97, 256, 257]
    assert count_vocabulary(tokenizer) == 259


def test_without_a_template_of_its_own_it_gets_that_of_qwen_2_5_instruct(tmp_path):
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
        with refuses(DataMissing, code, f"TRAINER_TOKENIZER={config.tokenizer!r}"):
            ask(config)


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


def ask(pairs, tokenizer=None, seq_len=64):
    return encode(pairs, tokenizer or build_byte_tokenizer(), seq_len)[0]


def tokenizer_with(template: str | None) -> Any:
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    return tokenizer


def test_long_documents_are_cut_and_those_without_a_label_left_out():
    around = len(ask([("q", "a")])[0].ids) - 3  # of the chat form before the answer
    whole, cut, brink, none = ask(
        [("q" * 4, "a" * 20), ("q" * 4, "a" * 60), ("q" * (63 - around), "abc"), ("q" * (64 - around), "a")]
    )
    assert len(whole.ids) == around + 4 + 21 and whole.ids[-1] == 258 and not whole.cut
    assert len(cut.ids) == 64 and cut.cut and cut.ids[-1] == ord("a"), "it must not teach to stop there"
    assert brink.learned.index(True) == 63 and brink.ids[63:] == [ord("a")] and brink.cut
    assert none is None


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{% for m in messages | reverse %}[{{ m.content }}]{% endfor %}", "SL-chat-template-order"),
        ("{% for m in messages %}{{ raise_exception('no') }}{% endfor %}", "SL-chat-template-refuses"),
    ],
)
def test_a_template_that_does_not_work_is_refused(template, code):
    with refuses(ConfigError, code, "TRAINER_TOKENIZER"):
        ask([("q", "a")], tokenizer_with(template))


START, END = "<|im_start|>", "<|im_end|>"
PROMPT = f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"


def template_of(content: str) -> str:
    turn = f"{START}{{{{ m.role }}}}\n{{{{ {content} }}}}{END}\n"
    return f"{{% for m in messages %}}{turn}{{% endfor %}}{PROMPT}"


DROPS_THOUGHTS = template_of("m.content.split('</think>')[-1]")
STRIPS = template_of("m.content.strip().replace('\\n\\n', '\\n')")
DROPS_QUESTIONS = template_of("m.content[:3] if m.role == 'user' else m.content")
THOUGHT = "<think>two and two, a long thought</think>4"


@pytest.mark.parametrize(
    ("template", "pair", "altered"),
    [
        (DROPS_THOUGHTS, ("2+2?", THOUGHT), True),
        (DROPS_THOUGHTS, ("2+2?", "4"), False),
        (DROPS_QUESTIONS, ("2+2?", "4"), True),
        (STRIPS, ("  a\n\nb ", "\n4 "), False),
        (None, ("2+2?", THOUGHT), False),
    ],
)
def test_a_template_that_drops_text_is_noticed(template, pair, altered):
    _, tally = encode([("q", "a"), pair], tokenizer_with(template))
    assert (tally.counts[ALTERED], tally.first.get(ALTERED)) == ((1, 1) if altered else (0, None))
    assert tally.documents == 2


@pytest.mark.parametrize("pair", [(f"x {START} y", "a"), ("q", f"x {END} y")])
def test_control_tokens_in_texts_are_text(pair):
    tokenizer = build_byte_tokenizer()
    (plain,), _ = encode([("q", "a")], tokenizer)
    (document,), tally = encode([pair], tokenizer)
    controls = [[each for each in one.ids if each > 255] for one in (plain, document)]
    assert controls[0] == controls[1], "those of the template alone"
    assert pair[pair[0] == "q"] in tokenizer.decode(document.ids) and tally.counts[CONTROL] == 1
    again, later = encode([("q", "a")], tokenizer)
    assert again[0] == plain and not later.counts, "the tokenizer is left as it was"


def given(tmp_path: Path, thoughts: int) -> Any:
    """A configuration whose data has `thoughts` of 100 documents in which the template drops something."""
    rows = [{"query": f"q{i}", "response": THOUGHT if i < thoughts else f"a{i}"} for i in range(100)]
    path = write_jsonl(tmp_path / "data" / "train.jsonl", rows)
    tokenizer_with(DROPS_THOUGHTS).save_pretrained(tmp_path / "tokenizer")
    return text_config(
        tmp_path / "results", dataset_path=str(path.parent), tokenizer=str(tmp_path / "tokenizer")
    )


def start(config: Any) -> list[str]:
    said: list[str] = []
    ensure_cache(config, said.append)
    return said


def test_more_than_one_in_twenty_is_refused(tmp_path):
    refused = given(tmp_path / "6", 6)
    for look in (start, start, text_problems):  # it makes the cache, and it finds it
        with refuses(DataMissing, "SL-answers-altered", " 6 of 100 ") as failure:
            look(refused)
        assert exit_code(failure.value) == DATA_MISSING
    for config in (refused.model_copy(update={"allow_altered_answers": True}), given(tmp_path / "5", 5)):
        for _ in range(2):
            assert any("template" in sentence for sentence in start(config)), "at every start"
        assert text_problems(config) == []


ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


TWO_PAIRS = user("a") + answer("b") + "\n" + user("c") + answer("d")


TWO_SYSTEMS = "<start>system\na\n\nb<end>\n" + user("c") + answer("d")


REFUSED = {
    "two users": ("user user assistant", 1, user("a\n\nb") + answer("c")),
    "assistant first": ("assistant user assistant", 0, user("b") + answer("c")),
    "tool": ("user assistant tool assistant", 2, TWO_PAIRS),
    "two systems": ("system system user assistant", 1, TWO_SYSTEMS),
}
"""Roles of turns that say a, b, ...; the turn that is refused; what is read of them when merged."""


def chats_with(tmp_path: Path, **odd: dict[str, Any]) -> Config:
    """One question and answer each, but for the odd ones: `row7=chat(...)`."""
    usual: Row = lambda n: chat(("user", f"{n}"), ("assistant", "x"))  # noqa: E731
    path = put(tmp_path, {"a.jsonl": lines(lambda n: odd.get(f"row{n}") or usual(n))})
    return text_config(tmp_path, dataset_path=str(path))


@pytest.mark.parametrize("turns", REFUSED)
@pytest.mark.parametrize("template", ["own", "alternates"])
def test_roles_that_a_template_refuses_are_named_or_merged(turns, template, tmp_path):
    roles, place, merged = REFUSED[turns]
    given = list(zip(roles.split(), "abcd", strict=False))
    tokenizer = tokenizer_with(ALTERNATES if template == "alternates" else None)
    if template == "alternates":
        merged = merged.replace("<end>\n", "<end>").replace("]\n", "]")
        if given[0][0] == "system":  # it knows none: the question takes the text
            place, merged = 0, user("a\n\nb\n\nc").rstrip("\n") + answer("d")
    config = chats_with(tmp_path, row7=chat(*given))
    told = f"row 7: turn {place} has the role {given[place][0]}"
    with refuses(ConfigError, "SL-chat-template-refuses", told):
        read(config, tokenizer)
    splits, tally = read(config.model_copy(update={"chat_roles": "merge"}), tokenizer)
    assert merged in every(splits)
    assert tally.counts == {"merged": 1} and tally.first == {"merged": 7}


def test_a_chat_without_the_assistant_has_nothing_to_learn_and_one_of_unknown_roles_is_refused(tmp_path):
    asked = chat(("user", "a"))
    assert read(chats_with(tmp_path, row3=asked))[1].counts == {"empty": 1}
    with refuses(ConfigError, "SL-chat-template-refuses", "row 5: turn 1 "):
        read(chats_with(tmp_path, row3=asked, row5=chat(("user", "a"), ("narrator", "b"))))


USER_TURNS = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
)


FAMILIES = {
    "gemma": (
        "{{ bos_token }}{% for m in messages %}"
        + USER_TURNS
        + "<start_of_turn>{{ 'model' if m.role == 'assistant' "
        "else m.role }}\n{{ m.content | trim }}<end_of_turn>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model{{ '\\n' }}{% endif %}",
        ["<start_of_turn>", "<end_of_turn>"],
        "<start_of_turn>user\nHi 1<end_of_turn>\n<start_of_turn>model\n[Hello<end_of_turn>]\n"
        "<start_of_turn>user\nGo<end_of_turn>\n<start_of_turn>model\n[No<end_of_turn>]",
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}"
        + USER_TURNS
        + "{% if m.role == 'user' %}[INST] {{ m.content }} "
        "[/INST]{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
        [],
        "[INST] Hi 1 [/INST][Hello<end>][INST] Go [/INST][No<end>]",
    ),
    "llama-3": (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ '\\n\\n' }}{{ m.content | trim }}"
        "<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}{% endif %}",
        ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|start_header_id|>user<|end_header_id|>\n\nHi 1<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[Hello<|eot_id|>]"
        "<|start_header_id|>user<|end_header_id|>\n\nGo<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[No<|eot_id|>]",
    ),
    "phi-3": (
        "{% for m in messages %}<|{{ m.role }}|>{{ '\\n' }}{{ m.content }}<|end|>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% else %}{{ eos_token }}{% endif %}",
        ["<|user|>", "<|assistant|>", "<|end|>"],
        "<|user|>\nHi 1<|end|>\n<|assistant|>\n[Hello<|end|>]\n<|user|>\nGo<|end|>\n<|assistant|>\n[No<|end|>\n<end>]",
    ),
    "gpt-oss": (
        "{% for m in messages %}<|start|>{{ m.role }}{{ '<|channel|>final' if m.role == 'assistant' else '' }}"
        "<|message|>{{ m.content }}{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"],
        "<|start|>user<|message|>Hi 1<|end|><|start|>assistant[<|channel|>final<|message|>Hello<|end|>]"
        "<|start|>user<|message|>Go<|end|><|start|>assistant[<|channel|>final<|message|>No<|return|>]",
    ),
}


def read_four_turns(tmp_path: Path, template: str, tokens: Sequence[str] = ()) -> tuple[list[str], Tally]:
    """What a template reads of the chats of four turns; `tokens` are special to it."""
    tokenizer = tokenizer_with(template)
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in tokens])
    names = {tokenizer.convert_tokens_to_ids(token): token.encode() for token in tokens}
    config = text_config(tmp_path, dataset_path=str(put(tmp_path, FOUR_TURNS)))
    with pytest.MonkeyPatch.context() as patch:
        for number, name in names.items():
            patch.setitem(BYTE_TOKENS, number, name)
        splits, tally = read(config, tokenizer)
    return every(splits), tally


@pytest.mark.parametrize("family", FAMILIES)
def test_the_turns_of_the_assistant_are_found_in_the_templates_of_other_families(family, tmp_path):
    template, tokens, wanted = FAMILIES[family]
    found, tally = read_four_turns(tmp_path, template, tokens)
    assert wanted in found and not tally.counts


MARKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>"
    "{% endif %}{{ '\\n' }}{% endfor %}"
)


THINKS = (  # as that of Qwen3, which begins the last answer with an empty thought
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(("template", "last"), [(MARKS, "No"), (THINKS, "<think>\n\n</think>\n\nNo")])
def test_a_template_may_mark_what_is_learned_or_write_the_last_answer_in_another_way(
    template, last, tmp_path
):
    wanted = [READ_FOUR_TURNS(n).replace("No<end>]", f"{last}<end>]") for n in range(COUNT)]
    assert sorted(read_four_turns(tmp_path, template)[0]) == sorted(wanted)


def test_a_tokenizer_that_adds_a_blank_to_each_text_adds_it_once(tmp_path):
    """As those of Llama-2 and Mistral: an answer has the tokens that it has in the whole text."""
    words = {word: i for i, word in enumerate(["<s>", "▁q", "▁a", ":", "a", "▁", "q"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(words, [("▁", "q"), ("▁", "a")]))
    backend.normalizer = tokenizers.normalizers.Prepend("▁")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    path = put(tmp_path, {"a.jsonl": lines(lambda n: {"query": "q" * (n + 1) + ":", "response": "a"})})
    config = text_config(tmp_path, dataset_path=str(path))
    for texts in load_texts(config).values():
        for (document,) in encode_texts(texts, tokenizer, config, Tally()):
            assert document.ids[0] == words["▁q"] and document.ids[-2:] == [words[":"], words["a"]]
            assert document.learned == [False] * (len(document.ids) - 1) + [True]

"""Which classes weights know is a question of names, never of numbers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.data import open_data
from trainer.data.exported import check_classes, describe_head
from trainer.settings.config import Config, ConfigError
from trainer.settings.continuation import CLASS_NAMES_SHA256, resolved_problems
from trainer.shapes.class_names import hash_names, match_names, read_names
from trainer.shapes.teacher_rules import teacher_problems

TEN = [str(i) for i in range(10)]
OTHERS = ["zero", *TEN[1:]]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"class_names": ["b", "a"]}, ["b", "a"]),
        ({"id2label": {"10": "k", "2": "c", "0": "a"}}, ["a", "c", "k"]),
        ({"id2label": {0: "a", 1: "b"}}, ["a", "b"]),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, []),
        ({"num_labels": 3}, []),
        ({"id2label": {"x": "a"}}, []),
    ],
)
def test_the_names_in_a_config_json(content, names):
    assert read_names(content) == names


@pytest.mark.parametrize(
    ("known", "wanted", "order"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("abc", "cab", [2, 0, 1]),
        ("abc", "abd", None),
        ("abc", "ab", None),
        ("", "ab", [0, 1]),
        ("ab", "", []),
        (["Great_cat", "dog "], ["dog", "great cat"], [1, 0]),
        (["chat\u00e9", "dog"], ["dog", "chate\u0301"], [1, 0]),  # Linux and macOS
        (["Left", "left"], ["left", "Left"], [1, 0]),
        (["Left", "left"], ["left", "LEFT"], None),
    ],
)
def test_names_are_matched_by_name(known, wanted, order):
    assert match_names([*known], [*wanted]) == order


def weights(tmp_path: Path, names: list[str]) -> str:
    folder = tmp_path / "m"
    folder.mkdir()
    described = {"stratlab_model": "cnn", "class_names": names, "channels": 1}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "model.safetensors").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("names", "problems"), [(TEN, 0), (TEN[::-1], 0), (OTHERS, 1), (TEN[:9], 1)], ids=str
)
def test_a_teacher_of_other_classes_is_refused(tmp_path, names, problems):
    found = teacher_problems(Config(run="r", teacher=weights(tmp_path, names)), TEN)
    assert len(found) == problems
    if names == OTHERS:
        assert "'zero'" in found[0] and "'0'" in found[0]


@pytest.mark.parametrize(("names", "problems"), [(TEN[::-1], 0), (OTHERS, 1), (TEN[:9], 1)], ids=str)
def test_weights_of_other_classes_are_not_judged(tmp_path, names, problems):
    config = Config(run="r", model_path=weights(tmp_path, names), init="pretrained")
    found = []
    try:
        check_classes(config, open_data(Config(run="r"), 8))
    except ConfigError as failure:
        found = failure.problems
    assert len(found) == problems and all(config.model_path in problem for problem in found)


@pytest.mark.parametrize(
    ("names", "init", "says"),
    [
        (TEN, "pretrained", ""),
        (TEN[::-1], "pretrained", "another order"),
        (OTHERS, "pretrained", "a new head"),
        (OTHERS, "scratch", ""),
    ],
    ids=str,
)
def test_what_becomes_of_the_head_is_one_line(tmp_path, names, init, says):
    config = Config(run="r", model_path=weights(tmp_path, names), init=init)
    said = describe_head(config, TEN)
    assert says in said and bool(said) == bool(says)


@pytest.mark.parametrize(("names", "problems"), [(TEN, 0), (TEN[::-1], 1), (OTHERS, 1)], ids=str)
def test_a_training_goes_on_with_the_same_names_in_the_same_order_alone(names, problems):
    before, now = ({CLASS_NAMES_SHA256: hash_names(some)} for some in (names, TEN))
    assert len(resolved_problems(before, now, "demo/a")) == problems
    assert resolved_problems({}, now, "demo/a") == []

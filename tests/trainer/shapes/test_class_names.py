"""Which classes weights know is a question of names, never of numbers alone."""

import json
from pathlib import Path

import pytest

from stratlab_spec.models.model_specs import match_names, read_names
from stratlab_spec.models.teacher import teacher_problems
from stratlab_spec.settings.config import Config, ConfigError
from tests.codes import find_codes
from trainer.data import open_data
from trainer.data.files import check_classes, describe_head

TEN = [str(i) for i in range(10)]
OTHERS = ["zero", *TEN[1:]]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"class_names": ["b", "a"]}, ["b", "a"]),
        ({"id2label": {"10": "k", "2": "c", "0": "a"}}, ["a", "c", "k"]),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, []),
        ({"id2label": {"x": "a"}}, []),
    ],
)
def test_the_names_in_a_config_json(content, names):
    assert read_names(content) == names


@pytest.mark.parametrize(
    ("known", "wanted", "order"),
    [
        ("abc", "cab", [2, 0, 1]),
        ("abc", "abd", None),
        ("abc", "ab", None),
        ("", "ab", [0, 1]),
        (["Great_cat", "dog "], ["dog", "great cat"], [1, 0]),
        (["chat\u00e9", "dog"], ["dog", "chate\u0301"], [1, 0]),  # Linux and macOS
        (["Left", "left"], ["left", "Left"], [1, 0]),
        (["Left", "left"], ["left", "LEFT"], None),
    ],
)
def test_names_are_matched_by_name(known, wanted, order):
    assert match_names([*known], [*wanted]) == order


@pytest.mark.parametrize(
    ("names", "fits", "head"),
    [(TEN[::-1], True, "another order"), (OTHERS, False, "new head"), (TEN[:9], False, "new head")],
    ids=["another order", "another name", "fewer"],
)
def test_a_teacher_of_other_classes_is_refused(tmp_path: Path, names, fits, head):
    described = {"stratlab_model": "cnn", "class_names": names, "channels": 1}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "model.safetensors").touch()
    found = teacher_problems(Config(run="r", teacher=str(tmp_path)), TEN)
    assert find_codes(found) == ([] if fits else ["SL-teacher-classes"])
    assert names != OTHERS or ("'zero'" in found[0] and "'0'" in found[0])
    config = Config(run="r", model_path=str(tmp_path), init="pretrained")
    assert head in describe_head(config, TEN) and describe_head(config, names) == ""
    try:
        check_classes(config, open_data(Config(run="r"), 8))
    except ConfigError as failure:
        assert not fits and find_codes(failure) == ["SL-exported-classes"]
    else:
        assert fits

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.settings.config import ConfigError
from trainer.settings.schema import schema
from trainer.settings.settings_file import build_variables, read_pairs, read_settings_file


def write(folder: Path, text: str) -> Path:
    (folder / "training.yaml").write_text(text)
    return folder / "training.yaml"


def test_values_are_as_they_were_typed(tmp_path: Path) -> None:
    text = "lr: 1e-3\ncompile: on\ntarget_accuracy_pct: 90\nmodel_path: ''\nsteps: null\nseed: 012\nrun: no\n"
    found = read_settings_file(write(tmp_path, text)).settings
    assert found == {
        "lr": "1e-3",
        "compile": "on",
        "target_accuracy_pct": "90",
        "model_path": "",
        "steps": None,
        "seed": "012",
        "run": "no",
    }
    assert build_variables({"lr": "1e-3", "steps": None}) == {"TRAINER_LR": "1e-3"}


def test_every_setting_of_the_schema_can_stand_in_a_file(tmp_path: Path) -> None:
    entries = schema()["properties"].items()
    defaults = {name: str(each["default"]) for name, each in entries if "default" in each}
    text = "".join(f"{name}: {value!r}\n" for name, value in defaults.items())
    found = build_variables(read_settings_file(write(tmp_path, text)).settings)
    assert len(found) > 90
    assert found == {f"TRAINER_{name.upper()}": value for name, value in defaults.items()}


def test_a_charts_values_give_what_is_a_runs(tmp_path: Path) -> None:
    text = """
run:
  nodes: 2
  processesPerNode: 4
  accelerator: ""
  env: [{name: OMP_NUM_THREADS, value: "1"}]
  config: {model: cnn, lr: 0.003}
other: 1
"""
    found = read_settings_file(write(tmp_path, text))
    assert found.settings == {"model": "cnn", "lr": "0.003"}
    assert (found.processes, found.variables) == ("4", {"OMP_NUM_THREADS": "1"})
    assert found.left_out == ("other", "run.nodes", "run.accelerator")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lr: 1\nlr: 2\n", "no YAML: lr is there twice in line 2"),
        ("lr: [\n", "no YAML: "),
        ("- lr\n", "expected names and values"),
        ("just words", "expected names and values"),
        ("lora_targets: [q, k]\nzeropp: {a: b}\n", "lora_targets: expected one value, not a list"),
        ("run: {config: [1]}\n", "run.config: expected names and values"),
        ("run: {env: {A: b}}\n", "run.env: expected a list of name and value"),
        ("run: {config: {lr: [1]}}\n", "run.config.lr: expected one value, not a list"),
        ("lr: 0.5\nLR: 0.001\n", "'LR': no name of a setting, did you mean lr?"),
        ("run: {config: {Lr: 1}}\n", "run.config.'Lr': no name of a setting, did you mean lr?"),
        ("a=b: 1\n", "'a=b': no name of a setting"),
        ("micro-batch-size: 4\n", "'micro-batch-size': no name of a setting, did you mean micro_batch_size?"),
        ("microBatchSize: 4\n", "'microBatchSize': no name of a setting, did you mean micro_batch_size?"),
        ("TRAINER_LR: 1\n", "'TRAINER_LR': no name of a setting, did you mean lr?"),
        ("'lr:': 1\n", "'lr:': no name of a setting, did you mean lr?"),
        ("? [a]\n: b\n", "no YAML: expected a name before ':' in line 1"),
        ("{a: b}: c\n", "no YAML: expected a name before ':' in line 1"),
        ("[" * 5000, "its lists or names are too deep"),
        ('model_path: "a\\0b"\n', "model_path='a\\x00b': holds a character that no process can be given"),
        ('model_path: "\\ud800"\n', "model_path='\\ud800': holds a character that no process can be given"),
        ("run: {env: [{name: A=B, value: c}]}\n", "run.env: 'A=B'='c' cannot be a variable of a process"),
        ("run: {env: [{name: '', value: c}]}\n", "run.env: ''='c' cannot be a variable of a process"),
        ("run: {env: [{name: [A], value: c}]}\n", "run.env: expected a list of name and value"),
        ("run: {processesPerNode: [2]}\n", "run.processesPerNode: expected a number from 1"),
        (
            "lr: 1\n---\nlr: 2\n",
            "expected a single document in the stream, but found another document in line 2",
        ),
    ],
)
def test_what_is_no_settings_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match="--config .*training.yaml: ") as refused:
        read_settings_file(write(tmp_path, text))
    assert sentence in str(refused.value)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings_file(write(tmp_path, "lora_targets: [q, k]\nzeropp: {a: b}\n"))
    assert [problem.split(": ")[-2] for problem in refused.value.problems] == ["lora_targets", "zeropp"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, sentence in ((tmp_path / "no.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=sentence):
            read_settings_file(path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary.yaml: "):
        read_settings_file(tmp_path / "binary.yaml")


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert read_settings_file(write(tmp_path, "# nothing\n")).settings == {}


def test_a_tag_changes_nothing_of_what_was_typed(tmp_path: Path) -> None:
    text = "lr: !!int abc\nsteps: !!bool foo\nseed: !!timestamp foo\n"
    assert read_settings_file(write(tmp_path, text)).settings == {"lr": "abc", "steps": "foo", "seed": "foo"}


def test_null_in_a_charts_values_is_as_if_nobody_had_named_it(tmp_path: Path) -> None:
    found = read_settings_file(write(tmp_path, "run: {config: null, env: ~, processesPerNode: null}\n"))
    assert (found.settings, found.processes, found.variables) == ({}, "", {})


def test_a_path_that_no_file_can_have() -> None:
    for path in ("a\0b", "\ud800"):
        with pytest.raises(ConfigError, match="--config "):
            read_settings_file(Path(path))


def test_pairs() -> None:
    given = ["lr=0.1", "run.config.model=cnn", "steps=null", "model_path=a=b"]
    assert read_pairs(given) == {"lr": "0.1", "model": "cnn", "steps": None, "model_path": "a=b"}
    with pytest.raises(ConfigError, match=r"--set lr: expected key=value[^$]*--set =3: "):
        read_pairs(["lr", "=3"])
    with pytest.raises(ConfigError, match=r"'LR': no name of a setting, did you mean lr\?\nseed=.*: holds"):
        read_pairs(["lr=1", "LR=2", "seed=\0"])

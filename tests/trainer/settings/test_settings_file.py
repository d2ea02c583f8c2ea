from pathlib import Path

import pytest

from stratlab_spec.settings.config import ConfigError
from stratlab_spec.settings.files import build_variables, read_pairs, read_settings_file
from tests.codes import find_codes, refuses


def read(folder: Path, text: str):
    (folder / "training.yaml").write_text(text)
    return read_settings_file(folder / "training.yaml")


def test_values_are_as_they_were_typed(tmp_path: Path) -> None:
    text = "lr: 1e-3\ncompile: on\nmodel_path: ''\nsteps: null\nseed: 012\nrun: no\nepochs: !!int abc\n"
    typed = {"lr": "1e-3", "compile": "on", "model_path": "", "steps": None, "seed": "012", "run": "no"}
    assert read(tmp_path, text).settings == typed | {"epochs": "abc"}
    assert read(tmp_path, "# nothing\n").settings == {}
    assert build_variables({"lr": "1e-3", "steps": None}) == {"TRAINER_LR": "1e-3"}


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
    found = read(tmp_path, text)
    assert found.settings == {"model": "cnn", "lr": "0.003"}
    assert (found.processes, found.variables) == ("4", {"OMP_NUM_THREADS": "1"})
    assert found.left_out == ("other", "run.nodes", "run.accelerator")
    found = read(tmp_path, "run: {config: null, env: ~, processesPerNode: null}\n")
    assert (found.settings, found.processes, found.variables) == ({}, "", {})


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("lr: 1\nlr: 2\n", "SL-config-no-yaml", "line 2"),
        ("lr: [\n", "SL-config-no-yaml", "line 2"),
        ("[" * 5000, "SL-config-deep", ""),
        ("- lr\n", "SL-config-no-names", ""),
        ("run: {config: [1]}\n", "SL-config-no-settings", "run.config"),
        ("run: {env: {A: b}}\n", "SL-config-env", "run.env"),
        ("run: {env: [{name: [A], value: c}]}\n", "SL-config-env", "run.env"),
        ("run: {env: [{name: A=B, value: c}]}\n", "SL-config-env-value", "'A=B'"),
        ("run: {processesPerNode: [2]}\n", "SL-config-processes", "run.processesPerNode"),
        ("run: {config: {lr: [1]}}\n", "SL-config-one-value", "run.config.lr"),
        ("lr: 0.5\nLR: 0.001\n", "SL-setting-name", "lr?"),
        ("microBatchSize: 4\n", "SL-setting-name", "micro_batch_size?"),
        ("TRAINER_LR: 1\n", "SL-setting-name", "lr?"),
        ('model_path: "a\\0b"\n', "SL-setting-character", "model_path"),
    ],
)
def test_what_is_no_settings_file_is_refused(tmp_path: Path, text: str, code: str, told: str) -> None:
    with refuses(ConfigError, code, "training.yaml", told):
        read(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "no.yaml", tmp_path, tmp_path / "binary.yaml", Path("a\0b"), Path("\ud800")):
        with pytest.raises(ConfigError) as refused:
            read_settings_file(path)
        assert find_codes(refused.value)[0] in ("SL-config-unreadable", "SL-config-no-yaml")


def test_pairs() -> None:
    given = ["lr=0.1", "run.config.model=cnn", "steps=null", "model_path=a=b"]
    assert read_pairs(given) == {"lr": "0.1", "model": "cnn", "steps": None, "model_path": "a=b"}
    with pytest.raises(ConfigError) as refused:
        read_pairs(["lr", "=3", "LR=2", "seed=\0"])
    codes = ["SL-set-no-pair", "SL-set-no-pair", "SL-setting-name", "SL-setting-character"]
    assert find_codes(refused.value) == codes

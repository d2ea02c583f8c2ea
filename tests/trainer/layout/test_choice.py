"""`layout: auto` on a device: what is left out, what is chosen instead, and what each layout needs."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab.predict.operations_file import SHIPPED, read_operations
from stratlab.predict.prediction import Prediction
from tests.trainer.runs import make_world
from trainer.failures import OutOfMemory
from trainer.forecast.memory import GIB
from trainer.forecast.operations_file import FOLDER
from trainer.launch import foreseen_memory
from trainer.launch.preflight import Pods
from trainer.layout.candidates import list_candidates
from trainer.layout.choice import choose_layout, resolve_on_device
from trainer.layout.command import main
from trainer.layout.need import STATE, as_laid_out, measure_need
from trainer.layout.resolve import resolve_layout
from trainer.run import resolve_placement
from trainer.settings.config import Config
from trainer.shapes.decoder_shapes import SHAPES

DENSE, MOE = "qwen2.5-3b", "qwen3-30b-a3b"
COUNTED = {"precision": "bf16", "seq_len": 2048, "micro_batch_size": 1, "global_batch_size": 64}
FIRST_GIB = 25.58
"""Of pp2.dp4, by the shipped file of two dimensions."""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """With the shipped files on the volume."""
    shutil.copytree(SHIPPED, tmp_path / FOLDER)
    return tmp_path


def config(results: Path | str = "/nowhere", model: str = DENSE, **settings: object) -> Config:
    own = {"run": "try", "strategy": "nd", "model": model, "results": str(results), "dimensions": 2}
    return Config(**own | COUNTED | settings)


def names(processes: int, model: str = DENSE, **settings: object) -> list[str]:
    asked = config(model=model, **{"global_batch_size": 384} | settings)
    return [layout.name for layout in list_candidates(asked, processes, SHAPES[model])]


def choose(asked: Config, device_gib: float, processes: int = 8):
    return choose_layout(asked, processes, SHAPES[asked.model], int(device_gib * GIB))


def test_the_candidates_keep_what_the_dimensions_promise():
    assert names(8, dimensions=1) == ["dp8x1"]
    assert names(8) == ["pp2.dp4", "pp4.dp2"], "pp8 would leave no data parallelism"
    assert names(16) == ["pp2.dp8", "pp4.dp4", "pp8.dp2"]
    assert names(12) == ["pp2.dp6", "pp3.dp4", "pp4.dp3", "pp6.dp2"]
    assert names(16, dimensions=3) == ["pp2.dp4.tp2", "pp4.dp2.tp2"], "two key-value heads"
    assert names(16, dimensions=4) == ["pp2.dp2.cp2.tp2+sp", "pp2.dp4.tp2+sp", "pp4.dp2.tp2+sp"]
    assert names(16, MOE, dimensions=5)[0] == "pp2.dp2.cp2.tp2+sp.ep8"
    assert names(2) == ["pp2"], "what the first one lacks the others may lack"
    assert names(8, layout="given", pp=4) == ["pp4.dp2"]


def test_the_first_one_is_what_it_was_where_memory_is_no_matter(results: Path):
    asked, shape = config(results), SHAPES[DENSE]
    plain = resolve_layout(asked, 8, shape)
    assert resolve_on_device(asked, 8, shape, None) == plain
    assert choose(asked, 80.0).layout == plain == resolve_on_device(asked, 8, shape, 80 * GIB)
    given = config(results, layout="given", pp=2)
    assert resolve_on_device(given, 8, shape, 1 << 20) == resolve_layout(given, 8, shape)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_a_layout_needs_what_stratlab_predict_says(results: Path, dimensions: int):
    asked = config(results, dimensions=dimensions)
    found = measure_need(asked, 8, SHAPES[DENSE], resolve_layout(asked, 8, SHAPES[DENSE]))
    files = list(read_operations([SHIPPED]))
    (theirs,) = answer(
        ask_of_model(DENSE, 8, files, ["strategy=nd", f"dimensions={dimensions}"]), files, 80.0, None
    )
    assert isinstance(theirs, Prediction) and found.gib == pytest.approx(theirs.needs_gib)
    assert sum(found.causes_gib.values()) == pytest.approx(found.gib)


def test_what_does_not_fit_is_left_out_and_one_sentence_says_why(results: Path):
    for device_gib in (FIRST_GIB + 0.01, FIRST_GIB - 0.01):
        choice = choose(config(results), device_gib)
        assert choice.fits and choice.layout.name == ("pp2.dp4" if device_gib > FIRST_GIB else "pp4.dp2")
    assert choice.layout.reason == (
        "2D on 8 processes: pp 4, dp_shard 2; left out, for a device has 25.57 GiB: pp2.dp4 needs 25.58 GiB (most of "
        "it activations 7.95; qwen2.5-3b-nd-2d-8.json); of pp4.dp2 no operations file tells more than its state, "
        "7.49 GiB"
    )
    assert choice.layout.as_dict()["name"] == "pp4.dp2" and not choice.layout.degenerate


def test_a_file_of_a_layout_with_its_degrees_answers_for_it(results: Path):
    """A stand-in for a count: that of pp2.dp4 with other degrees in its settings."""
    content = json.loads((results / FOLDER / "qwen2.5-3b-nd-2d-8.json").read_text())
    content["settings"] |= {"layout": "given", "dimensions": 1, "pp": 4}
    content["samples"] = [
        sample | {"axes": sample["axes"] | {"pp": 4, "dp_shard": 2}} for sample in content["samples"]
    ]
    (results / FOLDER / "pp4.json").write_text(json.dumps(content))
    choice = choose(config(results), FIRST_GIB - 1)
    assert not choice.fits and [need.source for need in choice.left_out] == [
        "qwen2.5-3b-nd-2d-8.json",
        "pp4.json",
    ]
    assert choose(config(results), FIRST_GIB + 1).fits


def test_without_a_file_the_state_decides(tmp_path: Path):
    asked = config(tmp_path)
    (first, other) = [
        measure_need(asked, 8, SHAPES[DENSE], layout) for layout in list_candidates(asked, 8, SHAPES[DENSE])
    ]
    assert first.source == other.source == STATE
    assert (round(first.gib, 2), round(other.gib, 2)) == (6.33, 7.49)
    assert choose(asked, 6.4).layout.name == "pp2.dp4"
    none = choose(asked, 6.0)
    assert not none.fits and none.layout.name == "pp2.dp4", "the one that needs least"
    assert "at least 6.33 GiB (most of it optimizer state 3.16" in none.tell_left_out(6.0)
    switched_off = config(tmp_path, memory_forecast=False)
    assert choose(switched_off, 7.0).need.source == STATE


def test_an_upper_bound_leaves_nothing_out(results: Path):
    need = measure_need(config(results), 8, SHAPES[DENSE], resolve_layout(config(results), 8, SHAPES[DENSE]))
    bound, exact = replace(need, at_most=True), replace(need, at_most=False)
    assert exact.exceeds(1.0) and not bound.exceeds(1.0)
    assert f"<= {need.gib:.2f} GiB" in bound.describe() and "<=" not in exact.describe()


def test_a_run_s_ranks_are_placed_by_the_memory_that_they_agreed_on(results: Path):
    asked, world = config(results), make_world(0, 8)
    assert resolve_placement(asked, world).axes.pp == 2
    assert resolve_placement(asked, world, int((FIRST_GIB - 1) * GIB)).axes.pp == 4
    laid = resolve_placement(asked, world, int((FIRST_GIB - 1) * GIB)).layout
    assert as_laid_out(asked, laid).pp == 4 and as_laid_out(asked, laid).layout == "given"
    assert as_laid_out(asked, resolve_placement(asked, world).layout) is asked


def check(run: Config, device_gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what NVML would say."""
    monkeypatch.setattr(foreseen_memory, "largest_device_bytes", lambda: int(device_gib * GIB))
    foreseen_memory.check_memory(run, Pods(1, 8))


def test_the_pod_says_what_was_left_out_before_its_ranks_start(results: Path, monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        check(config(results), 20.0, monkeypatch)
    assert "layout pp4.dp2: left out, for a device has 20.00 GiB: pp2.dp4 needs 25.58 GiB" in caplog.text
    assert "no operations file of these settings" in caplog.text, "of what was chosen"
    caplog.clear()
    with caplog.at_level(logging.INFO):
        check(config(results), 80.0, monkeypatch)
    assert "left out" not in caplog.text and "foreseen: 25.58 GiB on the device" in caplog.text


def test_where_none_fits_the_pod_ends_with_the_largest_cause(results: Path, monkeypatch):
    asked = config(results, dimensions=3)  # on 8 processes there is one
    with pytest.raises(OutOfMemory) as refused:
        check(asked, 17.0, monkeypatch)
    told = str(refused.value)
    assert told.startswith(
        "TRAINER_LAYOUT=auto: no layout of 3D fits; left out, for a device has 17.00 GiB: "
    )
    assert "pp2.dp2.tp2 needs 18.03 GiB (most of it activations 4.50; qwen2.5-3b-nd-3d-8.json)" in told
    assert "the least is 18.03 GiB of pp2.dp2.tp2, most of it activations 4.50" in told
    assert "try run.config.activation_checkpointing=blocks" in told and "memory_forecast=false" in told
    check(config(results, dimensions=3, oom_ladder=True), 17.0, monkeypatch)
    check(asked, 18.1, monkeypatch)


COMMAND = ["--model", DENSE, "--processes", "8", "--dimensions", "2", "seq_len=2048", "precision=bf16"]


def test_the_command_prints_the_memory_beside_each_layout(capsys):
    shipped = ["--operations", str(SHIPPED)]
    assert main([*COMMAND, *shipped, "--device-gib", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("pp4.dp2 ") and "left out, for a device has 20.00 GiB: pp2.dp4" in lines[1]
    table = [line.split() for line in lines if line.startswith(("layout ", "pp2.dp4", "pp4.dp2 *"))]
    assert table[0] == ["layout", "from", "GiB", "most", "of", "it", "fits"]
    assert table[1] == ["pp2.dp4", "qwen2.5-3b-nd-2d-8.json", "25.58", "activations", "7.95", "no"]
    assert table[2] == ["pp4.dp2", "*", "state", "alone", "7.49", "optimizer", "state", "3.74", "at", "least"]
    assert main([*COMMAND, *shipped, "--device-gib", "80"]) == 0
    assert capsys.readouterr().out.startswith("pp2.dp4 ")


def test_the_command_refuses_where_none_fits(capsys):
    assert main([*COMMAND, "--operations", str(SHIPPED), "--device-gib", "6"]) == 2
    told = capsys.readouterr().err
    assert "TRAINER_LAYOUT=auto, TRAINER_DIMENSIONS=2: no layout fits" in told
    assert "the least is 7.49 GiB of pp4.dp2, most of it optimizer state 3.74" in told
    assert (
        "try more processes, or adapters alone (run.config.lora_rank=16, run.config.init=pretrained)" in told
    )
    assert main([*COMMAND, "--dimensions", "1", "--device-gib", "40"]) == 2
    assert "dp8x1 needs at least 45.98 GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--device-gib", "0"], "expected GiB above 0, found '0'"),
        (["--device-gib", "large"], "expected GiB above 0, found 'large'"),
        (["--operations", "/not/there"], "--operations /not/there: no such folder"),
    ],
)
def test_the_command_says_what_is_wrong_with_an_option(capsys, options, sentence):
    try:
        code = main([*COMMAND, *options])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and sentence in capsys.readouterr().err

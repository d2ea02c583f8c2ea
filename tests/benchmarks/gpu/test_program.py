"""The program's rules: what it refuses, its kit, stages, lines on disk, gates, what it reads and shows of a run."""

import ast
import json
import math
import os
import re
import sys
import time
import tomllib
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import kit, read
from benchmarks.gpu.environment import is_fused
from benchmarks.gpu.gates import GATES, judge_lines
from benchmarks.gpu.models import EXTRAS, Model, resolve_run
from benchmarks.gpu.own_run import compare_losses, file_name, judge_losses, read_run
from benchmarks.gpu.project import RUNS, TINY_RUNS
from benchmarks.gpu.session import (
    FILE,
    MOST_BYTES,
    NotHere,
    Session,
    append_line,
    build_end,
    clean,
    find_oversize,
)
from benchmarks.gpu.stages import PART_LIMIT_S, PARTS, STAGES, UnknownStage, choose_stages, share_time
from benchmarks.gpu.strategies import RUNS as OTHERS
from benchmarks.gpu.strategies import TINY_RUNS as OTHER_TINY
from stratlab_spec.run_directory import read_lines
from tests.codes import find_codes

DONE = {"item": "x", "status": "done"}
RUN = {
    **DONE, "stage": "project", "model": "vit_base", "strategy": "single", "settings": {"COMPILE": "true"},
    "mfu_pct": 36.0,
}  # fmt: skip
SDPA = {"stage": "numerics", "errors": {"sdpa": {"out": 4e-3}, "flash": "not here"}}
STOPPED = {"stage": "stops", "item": "fsdp stopped, goes on"}
GATED = [
    ({"stage": "environment", "cudnn": 91900}, {"cudnn": 91400}),
    ({"stage": "environment", "not_fused": []}, {"not_fused": ["vit_huge T257 hd80"]}),
    (SDPA, {"errors": {"sdpa": {"dk": 0.3}}}),
    (SDPA, {"errors": {"sdpa": {"out": "nan"}}}),
    ({**RUN, "falls": True}, {"falls": False}),
    ({**RUN, "finite": True}, {"finite": False}),
    ({**RUN, "alloc_retries": 0}, {"alloc_retries": 2}),
    ({**RUN, "forecast_memory_error_pct": -2.9}, {"forecast_memory_error_pct": -3.1}),
    ({"stage": "quantizer", "numbers_differ": 1e-4}, {"numbers_differ": 2e-3}),
    ({"stage": "quantizer", "exact": True}, {"exact": False}),
    (RUN, {"mfu_pct": 34.0}),
    (RUN, {"mfu_pct": None}),
    ({"stage": "gloo", "loss_error": 1e-7}, {"loss_error": "nan"}),
    ({**STOPPED, "loss_error": 0.0}, {"loss_error": 2e-3}),
    ({**STOPPED, "steps_lost": 0}, {"steps_lost": 1}),
]
NOT_GATED = [
    {"strategy": "fsdp"}, {"settings": {}}, {"model": "vit_small"},  # the floor is that of a model alone, compiled
    {"status": "out_of_memory", "mfu_pct": None},
]  # fmt: skip


def test_each_gate_holds_and_fails() -> None:
    for good, change in GATED:
        good = {**DONE, **good}
        assert all(verdict.passed for verdict in judge_lines([good], "cuda")), good
        assert not all(verdict.passed for verdict in judge_lines([{**good, **change}], "cuda")), change
    lines = [{**DONE, **good} for good, _ in GATED]
    assert {verdict.gate for verdict in judge_lines(lines, "cuda")} == {gate.text for gate in GATES}
    assert judge_lines([{**RUN, "mfu_pct": 1.0, **change} for change in NOT_GATED], "cuda") == []
    killed = {**DONE, "stage": "stops", "item": "fsdp killed, goes on", "steps_lost": 16}
    assert judge_lines([killed], "cuda") == []
    assert len(judge_lines([{**RUN, "mfu_pct": 1.0, "falls": True}], "cpu")) == 1, "figures of a CPU are not"


@pytest.mark.parametrize(
    ("kernels", "fused"),
    [
        (["31 us cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "2 us add"], True),
        (["9 us void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>"], True),
        (["88 us fmha_cutlassF_bf16_aligned_64x64_rf_sm80"], False),  # memory-efficient
        ("RuntimeError: no available kernel: flash attention is switched off", False),
    ],
)
def test_only_cudnn_and_flash_are_fused_attention(kernels: list[str] | str, fused: bool) -> None:
    assert is_fused(kernels) is fused


def test_stages_have_a_module_and_every_part_fits_into_nine_minutes() -> None:
    for stage in STAGES:
        tree = ast.parse(Path("benchmarks/gpu", f"{stage.name}.py").read_text())
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert [a.arg for a in functions["run"].args.args] == ["session"], stage.name
    for part in PARTS:
        assert sum(stage.budget_s for stage in STAGES if stage.part == part) <= PART_LIMIT_S == 540
    assert [stage.part for stage in STAGES] == sorted(stage.part for stage in STAGES)


def test_stages_are_chosen_by_name_by_part_or_all() -> None:
    assert choose_stages() == STAGES
    assert [stage.name for stage in choose_stages("ab, numerics")] == ["numerics", "ab"]
    assert {stage.part for stage in choose_stages(part=4)} == {4}
    for names, part, code in (
        ("numeric", None, "SL-gpu-stage-unknown"),
        ("", 6, "SL-gpu-part-unknown"),
        ("ab", 1, "SL-gpu-stages-and-part"),
    ):
        with pytest.raises(UnknownStage) as refused:
            choose_stages(names, part)
        assert find_codes(refused.value) == [code]


def test_a_stage_may_use_what_is_left_over_but_not_what_comes_after() -> None:
    first, second, *_ = STAGES
    both, whole = (first, second), first.budget_s + second.budget_s
    assert [share_time(both, s) for s in (whole, whole + 7, 4)] == [first.budget_s, first.budget_s + 7, 4]
    assert share_time((second,), second.budget_s + 20) == second.budget_s + 20


def test_a_line_is_on_the_disk_when_it_is_written_and_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "results.jsonl", list[int]()
    assert read_lines(path) == []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    append_line(path, {"item": "loss", "ms": 1.23456789, "error": math.nan, "sizes": (1, 2)})
    assert synced == [path.stat().st_size] != [0]
    with path.open("a") as file:
        file.write('{"item": "to')
    assert read_lines(path) == [{"item": "loss", "ms": 1.2346, "error": "nan", "sizes": [1, 2]}]
    assert clean({"a": math.inf, "b": [math.nan, 2], "c": True}) == {"a": "inf", "b": ["nan", 2], "c": True}


@pytest.mark.parametrize(
    ("statuses", "more", "status", "reasons"),
    [
        (("done", "skipped", "out_of_memory"), {}, "passed", 0),
        (("skipped",), {}, "failed", 1),  # it executed nothing
        (("done", "failed"), {"exit_code": 1, "gates_failed": ["the loss falls"]}, "failed", 3),
        (("done", "done"), {"exit_code": None, "killed": "out of time"}, "failed", 1),
    ],
)
def test_when_a_stage_has_passed(statuses: tuple, more: dict, status: str, reasons: int) -> None:
    lines = [{"status": each} for each in statuses]
    end = build_end("ab", lines, **{"exit_code": 0, "seconds": 1.0, "budget_s": 2.0, **more})
    assert (end["status"], len(end["reasons"])) == (status, reasons)
    assert end["done"] == sum(each in ("done", "out_of_memory") for each in statuses)


def test_files_that_would_not_come_back_are_named(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.json").touch()
    os.truncate(tmp_path / "3.json", MOST_BYTES)
    too_large, too_many = find_oversize(tmp_path)
    assert "3.json" in too_large and "9 files" in too_many
    assert find_oversize(tmp_path / "nothing") == []


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def session_in(folder: Path, left_s: float = 100.0, tiny: bool = False, **more) -> Session:
    return Session("ab", "cpu", tiny, str(folder), str(folder), time.time() + left_s, **more)


def fail(failure: Exception) -> dict:
    raise failure


def test_each_measurement_is_written_and_a_failure_is_its_own(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    assert session.measure("loss", lambda batch: {"ms": batch}, 7)
    for failure in (ValueError("bad shape"), OutOfMemoryError("2 GiB"), NotHere("flex: no backward")):
        assert not session.measure("bad", fail, failure)
    assert session.measure("last", dict)
    assert not session_in(tmp_path, left_s=5).measure("long", dict, needs_s=10)
    assert session_in(tmp_path, left_s=5, tiny=True).measure("small", dict, needs_s=10)
    lines = read_lines(tmp_path / FILE)
    wanted = ["done", "failed", "out_of_memory", "skipped", "done", "skipped", "done"]
    assert [line["status"] for line in lines] == wanted
    assert (lines[0]["stage"], lines[0]["item"], lines[0]["ms"]) == ("ab", "loss", 7)
    assert "bad shape" in lines[1]["error"] and "where" in lines[1] and "flex" in lines[3]["reason"]


def test_a_session_goes_to_another_process_whole_and_knows_its_time_and_runs(tmp_path: Path) -> None:
    asked = session_in(tmp_path, scale=3, runs="b:ddp, c:zero2+compile,")
    assert Session.from_json(asked.to_json()) == asked
    assert asked.choose(("a:single",)) == ("b:ddp", "c:zero2+compile")
    assert session_in(tmp_path).choose(("a:single",)) == ("a:single",)
    assert session_in(tmp_path, left_s=50).within(240) == pytest.approx(49, abs=1)
    assert session_in(tmp_path, left_s=5000, scale=2).within(240) == 480


def test_every_model_is_tried_under_every_strategy_and_a_run_s_name_is_its_settings() -> None:
    models = {name: Model({"MODEL": name}, 10) for name in ("vit_base", "vit_huge", "qwen2.5-3b")}
    strategies = ("single", "ddp", "fsdp", "zero2", "zero3")
    plain = {name for name in (*RUNS, *OTHERS) if "+" not in name}
    assert plain >= {f"{model}:{strategy}" for model in models for strategy in strategies}
    assert {name.split(":")[1] for name in (*TINY_RUNS, *OTHER_TINY)} == {*strategies}
    found = resolve_run("vit_base:single+compile", models)
    assert found == ("vit_base", {"MODEL": "vit_base", "STRATEGY": "single"} | EXTRAS["compile"], 50)
    assert file_name("qwen2.5-3b:single+compile") == "qwen2-5-3b-single-compile"


@pytest.mark.parametrize(
    ("losses", "finite", "falls"),
    [
        ([3.0, 3.1, 3.0, 2.0, 1.9, 1.8], True, True),
        ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0], True, False),
        ([3.0, 3.0, 3.0, 2.0, None, 1.0, 1.0], False, True),
        ([3.0, 3.0, 3.0, math.nan, math.nan, math.nan], False, False),
        ([4.0, 3.0, 2.0, 1.0], True, False),  # too few to say
        ([], False, False),
    ],
)
def test_losses_are_judged(losses: list, finite: bool, falls: bool) -> None:
    assert judge_losses(losses) == {"finite": finite, "falls": falls}


def test_what_is_read_of_a_run_that_was_cut_off_and_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "train", "loss": 2.5, "step_time_ms": 10}\n{"kind": "tra'
    )
    facts = read_run(tmp_path)
    assert facts["losses"] == [2.5] and facts["outside_gib"] is None and "falls" not in facts
    (tmp_path / "ranks").mkdir()
    for number, gib in ((0, 3.0), (1, 7.5)):
        memory = {"peak_gib": gib, "outside_gib": number + 0.5, "peak_phase": "backward"}
        (tmp_path / "ranks" / f"rank{number}.json").write_text(json.dumps({"training_memory": memory}))
    assert read_run(tmp_path)["outside_gib"] == 1.5, "of the fullest one"


def test_losses_of_two_ranks_are_compared_with_one() -> None:
    alone = {"losses": [2.0, 1.0], "grad_norms": [4.0, 4.0]}
    found = compare_losses({"losses": [2.0, 1.01], "grad_norms": [4.0, 3.0]}, alone)
    assert found == {"loss_error": pytest.approx(0.01), "norm_error": 0.25}
    for losses in ([2.0], [2.0, None], []):
        assert math.isnan(compare_losses({"losses": losses, "grad_norms": [1.0, 1.0]}, alone)["loss_error"])


def test_what_cannot_start_is_told_by_its_code(capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runs = "vit_base:zero2+compile,vit:zero9+fast"
    for arguments, codes in (
        (["--part", "1"], ["SL-gpu-no-cuda"]),
        (["--stages", "speed"], ["SL-gpu-stage-unknown"]),
        (["--stages", "project", "--runs", runs], ["SL-gpu-run-unknown"] * 3),
    ):
        assert command.main(arguments) == 2
        assert find_codes(capsys.readouterr().err) == codes
    monkeypatch.setitem(sys.modules, "torch", None)
    assert command.main(["--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert find_codes(said) == ["SL-gpu-torch-missing"] and sys.executable in said


LOCK = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", Path("requirements/gpu_kit.txt").read_text(), re.M))


def test_the_code_alone_is_enough_and_what_is_wrong_with_a_kit_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "kit"
    kit.copy_code(folder)
    with pytest.raises(kit.BadKit) as refused:
        kit.check_kit(folder)
    assert find_codes(refused.value) == ["SL-kit-part-missing"]
    (folder / "site").mkdir()
    kit.check_kit(folder)
    operations = ("benchmarks/gpu/operations/vit_base-single.json", "stratlab/analysis/run_analysis.py")
    ours = ("trainer/worker.py", "stratlab_spec/schedule.py")
    for name in (*operations, *ours, *(f"benchmarks/gpu/{stage.name}.py" for stage in STAGES)):
        assert (folder / name).is_file(), name
    assert (folder / "start").stat().st_mode & 0o111
    assert not list(folder.rglob("__pycache__")), "what Python compiled here stays here"
    (folder / "site" / "core.cpython-311-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(kit, "LARGEST_MB", 1.0)
    with pytest.raises(kit.BadKit) as refused:
        kit.check_kit(folder)
    assert find_codes(refused.value) == ["SL-kit-python", "SL-kit-too-large"]
    assert "site/core.cpython-311-x86_64-linux-gnu.so" in str(refused.value)


def test_the_packages_have_the_project_s_pins_and_nothing_is_carried_that_is_there():
    homes = (Path(), Path("distributions/stratlab-trainer"), Path("distributions/stratlab-spec"))
    projects = [tomllib.loads((home / "pyproject.toml").read_text())["project"] for home in homes]
    wanted = " ".join(name for project in projects for name in project["dependencies"])
    pins = dict(re.findall(r"([a-z0-9-]+)==([0-9.]+)", wanted))
    carried = {"pydantic", "pydantic-core", "msgspec", "deepspeed", "tenacity"}
    assert carried <= LOCK.keys() and {name: pins.get(name, pin) for name, pin in LOCK.items()} == LOCK
    there = set(re.findall(r"^([a-z0-9-]+)==", Path("requirements/bare.txt").read_text(), re.M))
    assert not there & (LOCK.keys() | carried)


def test_a_kit_takes_no_other_folder_s_place(tmp_path):
    out = tmp_path / "kit"
    kit.check_replaceable(out)
    (out / "trainer").mkdir(parents=True)
    kit.check_replaceable(out)
    (out / "results").mkdir()
    with pytest.raises(kit.BadKit) as refused:
        kit.build_kit(out, tmp_path / "no-uv")
    assert find_codes(refused.value) == ["SL-kit-replaces"] and (out / "results").is_dir()


BEGIN = {"stage": "all", "item": "begin", "device": "cuda", "tiny": False, "stages": ["project"]}
SHOWN = {
    "stage": "project", "item": "vit_base:single", "status": "done", "model": "vit_base", "strategy": "single",
    "settings": {"COMPILE": "true"}, "mfu_pct": 31.25, "step_time_ms_p50": 150.5, "falls": True, "finite": True,
}  # fmt: skip
ENDED = {
    "stage": "project", "item": "end", "status": "failed", "done": 1, "failed": 0, "skipped": 0, "seconds": 20.0,
    "reasons": ["gate: MFU of a model alone at its floor"],
}  # fmt: skip


def test_figures_stages_and_gates_are_shown():
    text = "\n".join(read.describe([BEGIN, SHOWN, ENDED]))
    header, figures = text.partition("project: ")[2].splitlines()[1:3]
    assert header.split()[:6] == ["item", "status", "step", "ms", "samples/s", "tokens/s"]
    assert figures.split() == ["vit_base:single", "done", "150.5", "-", "-", "31.25", *["-"] * 5, "True"]
    rows = [line.split() for line in text.splitlines()]
    assert ["project", "failed", "1", "0", "0", "20"] in [row[:6] for row in rows]
    (missed,) = (line for line in text.splitlines() if "0 of 1" in line)
    assert "MFU" in missed and "vit_base:single" in missed and text.count("1 of 1") == 2
    cut_off = "\n".join(read.describe([BEGIN, SHOWN]))
    assert "cut off" in cut_off and "cut off" not in text


def test_the_largest_error_of_each_path_is_shown():
    errors = {
        "sdpa": {"out": 1e-3, "dq": "nan"},
        "flex": {"out": 5e-3, "dk": 7e-3},
        "cudnn": "RuntimeError: none",
    }
    line = {"stage": "numerics", "item": "T257", "status": "done", "errors": errors}
    assert "flex 7.0e-03; not here: cudnn" in "\n".join(read.describe([BEGIN, line]))


@pytest.mark.parametrize(("lines", "code"), [([BEGIN, SHOWN, ENDED], 1), ([BEGIN, SHOWN], 0), ([], 3)])
def test_the_exit_code_tells_whether_something_failed(tmp_path, capsys, lines, code):
    for line in lines:
        append_line(tmp_path / "results.jsonl", line)
    assert read.main([str(tmp_path)]) == code
    assert bool(capsys.readouterr().out) == bool(lines)

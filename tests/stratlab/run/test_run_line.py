"""`stratlab run`: what a line becomes, with numbers by hand, and lines that are refused."""

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from stratlab import UserError
from stratlab.commands.run import Target, list_charts, run
from stratlab.run_line import RunLine, RunRequest, build_run_line, count_gpus
from tests.codes import find_codes

CHARTS = ("ddp", "fsdp", "llm-2d", "lora", "single", "zero2")


def build(model: str = "cnn", strategies: str = "ddp", local_gpus: int | None = 0, **options: Any) -> RunLine:
    return build_run_line(RunRequest(model, strategies, **options), CHARTS, local_gpus=local_gpus)


@pytest.mark.parametrize(
    ("local_gpus", "options", "processes", "batch", "micro"),
    [
        (0, {}, 2, "64", "32"),
        (8, {}, 8, "64", "8"),
        (3, {}, 3, "66", "22"),
        (0, {"strategies": "single"}, 1, "64", "32"),
        (0, {"gpus": 16, "nodes": 2}, 8, "64", "4"),
        (0, {"batch": 96}, 2, "96", "24"),
        (0, {"batch": 100, "micro_batch": 5}, 2, "100", "5"),
        (0, {"model": "qwen_tiny"}, 2, "64", "4"),
        (0, {"settings": ["micro_batch_size=6"]}, 2, "72", "6"),
        (0, {"settings": ["batch_size_per_gpu=8", "gradient_accumulation_steps=4"]}, 2, "64", "8"),
        (None, {}, None, None, None),
        (None, {"strategies": "llm-2d", "gpus": 8, "model": "qwen_tiny"}, 8, None, None),
    ],
)
def test_processes_and_batch_sizes(
    local_gpus: int | None,
    options: dict[str, Any],
    processes: int | None,
    batch: str | None,
    micro: str | None,
) -> None:
    line = build(local_gpus=local_gpus, **options)
    sizes = (line.config.get("global_batch_size"), line.config.get("micro_batch_size"))
    assert (line.processes, *sizes) == (processes, batch, micro)


def make_model(folder: Path, architecture: str, *, weights: bool) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    if weights:
        (folder / "model.safetensors").touch()
    return folder


def test_models_and_data(tmp_path: Path) -> None:
    llama = make_model(tmp_path / "My Llama", "LlamaForCausalLM", weights=True)
    vit = make_model(tmp_path / "vit", "ViTForImageClassification", weights=False)
    chat = tmp_path / "chat.jsonl"
    chat.touch()
    assert dict(build(str(llama), data=str(chat)).config) == {
        "model_path": str(llama),
        "task": "text",
        "init": "pretrained",
        "dataset_path": str(chat),
        "global_batch_size": "64",
        "micro_batch_size": "4",
        "comparison": "my-llama-chat",
    }
    assert {"init": "scratch", "dataset": "digits"}.items() <= build(str(vit)).config.items()
    assert "task" not in build(str(vit)).config
    assert build("Qwen/Qwen2.5-0.5B", data="a/b").config["init"] == "pretrained"
    assert build("Qwen/Qwen2.5-0.5B", settings=["init=scratch"]).config["init"] == "scratch"
    assert build("qwen2.5-0.5b", data=str(chat)).config["init"] == "pretrained"
    assert build("qwen2.5-0.5b", "lora").config["init"] == "pretrained"
    assert "init" not in build("qwen2.5-0.5b").config
    assert build("resnet50").config["model"] == "resnet"
    assert build("qwen_tiny").config["dataset"] == "arithmetic"
    assert build("qwen_tiny", settings=["dataset=metamathqa"]).config["dataset"] == "metamathqa"
    assert build(str(llama), "llm-2d").config["model"] == "null"
    on_volume = build("/results/llama", data="/results/chat.jsonl", settings=["task=text"]).config
    assert on_volume["model_path"] == "/results/llama" and on_volume["dataset_path"] == "/results/chat.jsonl"
    assert build("/results/llama", settings=["task=text"]).config["dataset"] == "arithmetic"


def test_strategies_settings_and_files(tmp_path: Path) -> None:
    line = build(
        strategies="fsdp_stage2, ddp",
        settings=["lr=0.1", "run.config.seed=3", "run.env=null", "lora_targets=a,b"],
    )
    assert line.strategies == ("zero2", "ddp") and line.paths == ("run.env=null",)
    assert {"run.config.lr=0.1", "run.config.seed=3", "run.config.lora_targets=a\\,b"} < set(line.settings)
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}, "gradient_clipping": 1, "steps_per_print": 5}')
    line = build(strategies="", config=file, settings=["clip_norm=2"])
    assert line.strategies == ("zero2",) and line.config["clip_norm"] == "2"
    assert any("steps_per_print" in note for note in line.notes)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"strategies": ""}, "SL-run-no-strategy"),
        ({"strategies": "dpd"}, "SL-run-strategy"),
        ({"strategies": "zero2,fsdp_stage2"}, "SL-run-strategy-twice"),
        ({"model": "vit_tny"}, "SL-run-model"),
        ({"model": "/"}, "SL-run-model-folder"),
        ({"data": "./absent"}, "SL-run-no-data"),
        ({"settings": ["lr"]}, "SL-run-set-form"),
        ({"settings": ["lrr=1"]}, "SL-run-set-unknown"),
        ({"settings": ["batch_size=8"]}, "SL-run-set-elsewhere"),
        ({"settings": ["gradient_accumulation_steps=2"]}, "SL-run-accumulation"),
        (
            {"settings": ["gradient_accumulation_steps=2"], "batch": 64, "micro_batch": 8},
            "SL-run-batch-conflict",
        ),
        ({"settings": ["micro_batch_size=x"]}, "SL-run-whole-number"),
        ({"strategies": "single,ddp"}, "SL-run-single"),
        ({"gpus": 3, "nodes": 2}, "SL-run-nodes"),
        ({"batch": 3}, "SL-run-batch"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(UserError) as refusal:
        build(**options)
    assert find_codes(str(refusal.value)) == [code]


def test_gpus_are_those_that_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: a'\necho 'GPU 1: b'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert count_gpus() == 0  # not a program
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert count_gpus() == 2


def test_scripts_and_a_sweep_have_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stratlab.commands import local, sweep

    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        local, "render", lambda chart, starter, **given: calls.append((chart.name, starter, given))
    )
    monkeypatch.setattr(sweep, "sweep", lambda file: calls.append((file,)))
    charts = Path("charts").resolve()
    model = make_model(tmp_path / "llama", "LlamaForCausalLM", weights=True)
    monkeypatch.chdir(tmp_path)
    options: Any = {"gpus": 4, "charts": charts, "steps": 30}
    run("cnn", "ddp,zero2", target=Target.ssh, output=tmp_path / "out", **options)
    (_, starter, given), (name, _, other) = calls
    assert (name, starter, given["output"].name) == ("zero2", "hostfile", "ddp.sh") and given[
        "processes"
    ] == 4
    assert given["settings"] == other["settings"] and "run.config.steps=30" in given["settings"]
    run("cnn", "ddp,zero2", namespace="lab", **options)
    run("cnn", "ddp,zero2", namespace="lab", **options)  # the same line continues
    content = yaml.safe_load(calls[-1][0].read_text())
    assert content["matrix"] == {"strategy": ["ddp", "zero2"]} and content["namespace"] == "lab"
    assert content["set"]["run.config.steps"] == 30 and content["set"]["run.processesPerNode"] == 4
    for code, wrong in {
        "SL-run-sweep-file": {"namespace": "other"},
        "SL-run-data-here": {"namespace": "lab", "data": str(tmp_path)},
        "SL-run-model-here": {"namespace": "lab", "model": str(model)},
        "SL-run-place": {"namespace": "lab", "target": Target.ssh},
        "SL-run-scripts": {"target": Target.ssh},
        "SL-run-json": {"as_json": True},
    }.items():
        with pytest.raises(UserError) as refusal:
            run(**{"model": "cnn", "strategies": "ddp,zero2"} | options | wrong)
        assert find_codes(str(refusal.value)) == [code]
    capsys.readouterr()
    run("cnn", "ddp", dry_run=True, as_json=True, **options)
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["steps"] == "30" and shown["processes_per_node"] == 4


def test_charts_are_folders_or_packages(tmp_path: Path) -> None:
    assert {"ddp", "llm-5d"} < set(list_charts(Path("charts"))) and "run" not in list_charts(Path("charts"))
    (tmp_path / "llm-2d-0.1.0.tgz").touch()
    assert list_charts(tmp_path) == ["llm-2d"]
    shutil.rmtree(tmp_path)
    with pytest.raises(UserError):
        list_charts(tmp_path)

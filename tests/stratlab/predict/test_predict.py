"""From a file's counts to a verdict: the arithmetic, which file answers, and the command as its user calls it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratlab import cli
from stratlab.predict import counting
from stratlab.predict.answering import complete
from stratlab.predict.asking import ask_of_charts
from stratlab.predict.count_command import COUNTED
from stratlab.predict.device_memory import GATE, GIB, Device, Verdict
from stratlab.predict.extrapolation import Sample, scale
from stratlab.predict.operations_file import SHIPPED, find_operations, read_operations, read_operations_file
from stratlab.predict.prediction import MOST_ROWS, predict
from stratlab.predict.question import Question
from stratlab.user_error import UserError
from tests.stratlab.predict.damaged_files import DAMAGES, SAMPLE_DAMAGES, damage
from trainer.counting.command import _parse
from trainer.counting.rules import read_countable

Call = Callable[..., tuple[int, str, str]]
CHUNK = 2


def held(layers: int, rows: int, ranks: int) -> dict[str, dict[str, int]]:
    """Two windows, the second one the fuller of few rows; logits stop growing at CHUNK rows."""
    state = {"parameters": (100 + 10 * layers) * 840 // ranks, "gathered": 500}
    loss = 1000 * min(rows, CHUNK)
    return {
        "forward": {**state, "activations": 7 * layers * rows, "logits and loss": loss},
        "backward, end": {**state, "gradients": 9000},
    }


SAMPLES = [
    *(Sample(layers, rows, 8, 0, held(layers, rows, 8)) for layers in (4, 8) for rows in (1, 2, 4)),
    *(Sample(layers, 4, 2, 0, held(layers, 4, 2)) for layers in (4, 8)),
]


@pytest.mark.parametrize("layers", [3, 36])
@pytest.mark.parametrize("rows", [1, 2, 3, 17, 100])
@pytest.mark.parametrize("ranks", [2, 4, 8, 60])
def test_what_grows_evenly_is_scaled_exactly(layers: int, rows: int, ranks: int) -> None:
    peak = scale(SAMPLES, layers, rows, ranks)
    window = max(held(layers, rows, ranks).items(), key=lambda one: sum(one[1].values()))
    assert (peak.window, peak.causes) == (window[0], window[1])


def test_the_fullest_rank_decides() -> None:
    last = [Sample(s.layers, s.rows, 8, 7, {"forward": {"activations": 10**9}}) for s in SAMPLES[:6]]
    assert scale([*SAMPLES[:6], *last], 36, 4, 8).rank == 7


def test_the_gate_lies_below_the_end() -> None:
    device = Device(gib=80, groups=1)
    fits = int((GATE * 80 - device.fixed_gib) / 1.04 * GIB)
    assert device.judge(fits - GIB // 100) is Verdict.FITS
    assert device.judge(fits + GIB // 100) is Verdict.NEAR_FULL
    assert device.judge(int((80 - device.fixed_gib) / 1.04 * GIB) + GIB // 100) is Verdict.NOT


def write_file(folder: Path, settings: dict[str, Any] | None = None, **others: Any) -> Path:
    named = {"model": "qwen2.5-3b", "strategy": "fsdp", "seq_len": 2048, "packing": True, "precision": "bf16"}
    named |= {"activation_checkpointing": "none", "loss_chunk_tokens": 2048, "lora_rank": 0}
    defaults = {**named, "model": "vit_tiny", "strategy": "single", "seq_len": 512}
    windows = [
        {"layers": s.layers, "rows": s.rows, "ranks": s.ranks, "rank": 0, "windows": s.windows, "axes": {}}
        for s in SAMPLES
    ]
    content = {
        "schema_version": 1,
        "key": "0123",
        "settings": named | (settings or {}),
        "defaults": defaults | {name: named.get(name, value) for name, value in (settings or {}).items()},
        "layers": 36,
        "scales_depth": True,
        "scales_ranks": True,
        "accumulates": True,
        "labels": 0,
        "channels": 0,
        "versions": {},
        "samples": windows,
        **others,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(content))
    return path


def ask(settings: dict[str, str], ranks: int = 8, global_batch: int = 0, whole: bool = True) -> Question:
    """Micro-batches of one row; a step of `global_batch`, where 0 is several."""
    return Question("x", settings, ranks, ranks, rows=1, global_batch=global_batch, whole=whole)


WANTED = {"model": "qwen2.5-3b", "strategy": "fsdp", "seq_len": "2048"}


@pytest.mark.parametrize(
    ("change", "ranks", "named"),
    [
        ({}, 64, ""),
        ({"precision": "auto", "packing": "True"}, 8, ""),
        ({"seq_len": "4096"}, 8, "seq_len=2048 (wanted 4096)"),
        ({"packing": "false"}, 8, "packing=true (wanted false)"),
        ({"strategy": "ddp"}, 8, "strategy=fsdp (wanted ddp)"),
        ({}, 1, "ranks=2, 8 (wanted 1)"),
    ],
)
def test_a_file_answers_for_its_own_settings(
    tmp_path: Path, change: dict[str, str], ranks: int, named: str
) -> None:
    file = read_operations_file(write_file(tmp_path))
    question = ask(WANTED | change, ranks)
    misses = file.misses(question)
    assert "".join(misses) == named
    assert (find_operations([file], question) is file) is not named


def test_a_setting_left_out_has_its_default_or_is_as_counted(tmp_path: Path) -> None:
    file = read_operations_file(write_file(tmp_path))
    short = {"model": "qwen2.5-3b", "strategy": "fsdp"}
    assert file.misses(ask(short)) == ["seq_len=2048 (wanted 512)"]
    assert not file.misses(ask(short, whole=False))


def test_a_file_of_six_layers_does_not_answer_for_the_model(tmp_path: Path) -> None:
    """Nobody says a depth who asks for a model; what scales with depth keeps none in its settings."""
    six = write_file(tmp_path, {"model_layers": 6})
    content = json.loads(six.read_text())
    content["defaults"]["model_layers"] = 0
    six.write_text(json.dumps(content))
    file = read_operations_file(six)
    short = {"model": "qwen2.5-3b", "strategy": "fsdp"}
    assert file.misses(ask(short, whole=False)) == ["model_layers=6 (wanted the model's own)"]
    assert not file.misses(ask(short | {"model_layers": "6"}, whole=False))


def test_a_file_of_one_micro_batch_does_not_answer_for_several(tmp_path: Path) -> None:
    file = read_operations_file(write_file(tmp_path, accumulates=False))
    assert file.misses(ask(WANTED)) and not file.misses(ask(WANTED, global_batch=8))


def test_the_largest_micro_batch_is_the_last_that_fits(tmp_path: Path) -> None:
    file = read_operations_file(write_file(tmp_path))
    question = Question("x", WANTED, ranks=8, per_node=8, rows=10**9, global_batch=0)
    found = complete(predict(question, file, 79.6), lambda other: None)
    device = found.device

    def fits(rows: int) -> bool:
        return device.judge(file.peak(rows, 8).total) is Verdict.FITS

    assert (
        found.largest > 1
        and fits(found.largest)
        and (not fits(found.largest + 1) or found.largest == MOST_ROWS)
    )
    assert found.advice.startswith("run.config.micro_batch_size=64000 fits at the same global batch, ")


@pytest.mark.parametrize("content", ["{", "[]", '{"schema_version": 1}', '{"schema_version": 9}'])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(UserError, match="broken.json"):
        read_operations_file(path)


@pytest.mark.parametrize("name", [*DAMAGES, *SAMPLE_DAMAGES])
def test_a_damaged_file_of_the_cache_is_left_out_and_one_that_is_given_is_refused(
    call: Call, tmp_path: Path, name: str
) -> None:
    content = json.loads((SHIPPED / "vit_huge-ddp-8.json").read_text())
    path = tmp_path / "cache/stratlab/operations/damaged.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(damage(content, name)))
    code, out, err = call("--model", "vit_huge", "--set", "strategy=ddp", "--json")
    assert code == 0 and json.loads(out)[0]["operations_file"] == "vit_huge-ddp-8.json"
    assert f"left out: {path}: no operations file (" in err and "delete it" in err
    code, _, err = call("--model", "vit_huge", "--operations", path.parent)
    assert code == 2 and err.startswith(f"error: {path}: no operations file (")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["stratlab", "predict", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


def test_a_model_and_gpus_give_every_strategy_that_ships(call: Call) -> None:
    code, out, _ = call("--model", "qwen2.5-3b", "--gpus", "64", "--json")
    answers = json.loads(out)
    found = {one["strategy"]: one for one in answers if one["verdict"] != "not known"}
    unknown = {one["name"]: one["reason"] for one in answers if one["verdict"] == "not known"}
    assert unknown["hsdp"] == "the nearest file has ranks=8 (wanted 64)" and "nd 3d" in unknown
    assert code == 0 and {"ddp", "fsdp", "zero2"} <= found.keys() and "single" not in found
    for one in found.values():
        assert sum(one["causes_gib"].values()) == pytest.approx(one["peak_gib"], abs=0.01)
    assert found["fsdp"]["peak_gib"] < found["zero2"]["peak_gib"] < found["ddp"]["peak_gib"]


def test_layouts_that_were_counted_are_told_apart(call: Call) -> None:
    _, out, _ = call("--model", "qwen2.5-3b", "--gpus", "8", "--json")
    peaks = {one["name"]: one["peak_gib"] for one in json.loads(out)}
    assert peaks["nd 1d"] > peaks["nd 2d"] > peaks["nd 3d"]
    _, out, _ = call(
        "--model", "qwen2.5-3b", "--gpus", "8", "--set", "strategy=nd", "--set", "dimensions=3", "--json"
    )
    assert {one["name"]: one["peak_gib"] for one in json.loads(out)} == {"nd": peaks["nd 3d"]}


def test_rows_of_one_table_have_the_same_settings(call: Call, tmp_path: Path) -> None:
    """A file of rows of 512 tokens lies in the cache, which goes before the shipped ones of 2048."""
    folder = tmp_path / "cache/stratlab/operations"
    folder.mkdir(parents=True)
    shipped = json.loads((SHIPPED / "qwen2.5-3b-fsdp-8.json").read_text())
    changed = {"seq_len": 512, "lora_rank": 8}
    content = shipped | {"settings": shipped["settings"] | changed}
    (folder / "a.json").write_text(json.dumps(content))
    _, out, _ = call("--model", "qwen2.5-3b", "--json")
    found = [one for one in json.loads(out) if one["verdict"] != "not known"]
    assert {one["settings"]["seq_len"] for one in found} == {2048} and len(found) > 5
    _, out, _ = call("--model", "qwen2.5-3b", "--json", "--set", "seq_len=512")
    [one] = [one for one in json.loads(out) if one["verdict"] != "not known"]
    assert one["settings"]["lora_rank"] == 8 and one["strategy"] == "fsdp"


WHOLE = {
    ("vit_huge", "hsdp"): "vit_huge hsdp dp_replicate=2 dp_shard=4",
    ("vit_huge", "zeropp"): "",  # there on two nodes
    ("qwen2.5-3b", "nd"): "",  # the report's is of another layout; tests/trainer/counting/ranks has nd
}
"""Of shipped files, what the report calls them where it is not model and strategy."""


def test_shipped_files_give_the_peaks_that_were_counted_whole() -> None:
    """reports/memory.json: all layers, four rows or 32 images, on eight ranks."""
    whole = json.loads(Path("reports/memory.json").read_text())["facts"]["configurations"]
    compared = 0
    for file in read_operations([SHIPPED]):
        one = whole.get(WHOLE.get((file.model, file.strategy), f"{file.model} {file.strategy}"))
        if one is None or file.settings["activation_checkpointing"] != "none":
            continue
        peak = file.peak(4 if "qwen" in file.model else 32, one["ranks"]).total / GIB
        assert peak == pytest.approx(one["gib"]["peak"], rel=0.03), file.path.name
        compared += 1
    assert compared >= 10


def test_charts_are_answered_and_written_as_a_page(call: Call, tmp_path: Path) -> None:
    text = (
        "model=qwen2.5-3b",
        "dataset=metamathqa",
        "seq_len=2048",
        "micro_batch_size=4",
        "global_batch_size=64",
    )
    settings = [word for one in text for word in ("--set", f"run.config.{one}")]
    page = tmp_path / "page.html"
    code, out, _ = call(
        "charts/ddp",
        "charts/fsdp",
        *settings,
        "--set",
        "run.processesPerNode=8",
        "--page",
        page,
        "--no-count",
    )
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["fsdp", "8", "4", "fits"] in [line[:4] for line in lines]
    assert [line for line in lines if line[:2] == ["ddp", "8"] and "run.config.micro_batch_size=1" in line]
    assert "logits and loss" in page.read_text() and "does not fit" in page.read_text()


def test_nothing_that_fits_ends_with_10_and_nothing_known_with_3(call: Call) -> None:
    assert call("--model", "qwen2.5-3b", "--device-gib", "8")[0] == 10
    code, out, _ = call("charts/fsdp", "--no-count", "--set", "run.config.model=vit_base")
    assert code == 3 and "no operations file of this model and strategy" in out
    (told,) = [line for line in out.splitlines() if line.startswith("where no file answers: ")]
    words = shlex.split(told.split("`")[1])
    assert words[:3] == ["python", "-m", "trainer.count"] and "model=vit_base" in words
    assert words[-2:] == ["--operations", "FOLDER/fsdp.json"]
    parsed = _parse(words[3:])
    settings = dict(text.split("=", 1) for text in parsed.set)
    assert settings["strategy"] == "fsdp" and parsed.ranks >= 1, "as it stands, the trainer reads it"


def test_the_printed_command_names_all_that_memory_depends_on(call: Call) -> None:
    held = {name for file in read_operations([SHIPPED]) for name in file.settings}
    assert held <= set(COUNTED) and len(held) > 40
    asked = ("--model", "qwen2.5-3b", "--set", "seq_len=4096", "--set", "packing=false")
    lines = [line for line in call(*asked)[1].splitlines() if line.startswith("where no file answers: ")]
    files = [line.partition("--operations ")[2].partition("`")[0] for line in lines]
    assert files == ["FOLDER/ddp.json", *(f"FOLDER/nd-{number}d.json" for number in (1, 2, 3, 4))]
    assert all("--set seq_len=4096" in line and "--set packing=false" in line for line in lines)
    assert "--per-node 4" in lines[0] and "(likewise with strategy=fsdp, hsdp, zero1," in lines[0]
    _, _, err = call("--model", "google/vit-base-patch16-224")
    assert "in place of dataset and seq_len" in err
    code, _, err = call("--model", "vit_base", "--gpus", "16")
    assert code == 2 and "--per-node 8 --set model=vit_base --set strategy=fsdp --set dataset=timm" in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "give either charts or --model"),
        (
            ("--model", "llama-3-8b"),
            "--model llama-3-8b: expected one of the ",
        ),
        (
            ("--model", "qwen2.5"),
            "did you mean qwen2.5-3b, qwen2.5-1.5b or qwen2.5-0.5b? expected one of the",
        ),
        (("--model", "resnett"), "did you mean resnet or resnet_finetuned?"),
        (("--model", "gpt"), "--model gpt"),
        (
            ("--model", "qwen2.5-3b", "--set", "image_size=4"),
            "that `stratlab predict --model qwen2.5-3b --json` lists",
        ),
        (("--model", "qwen2.5-3b", "--set", "micro_batch_size=0"), "micro_batch_size=0"),
        (
            ("--model", "vit_huge", "--set", "global_batch_size=0"),
            "global_batch_size=0: expected a whole number",
        ),
        (("--model", "vit_huge", "--set", "model_layers=100000"), "from 0 to 1000"),
        (("--model", "vit_huge", "--set", f"micro_batch_size={10**20}"), "from 1 to 1000000000"),
        (("--model", "vit_huge", "--set", "micro_batch_size=٣٢"), "micro_batch_size=٣٢"),
        (("--model", "qwen2.5-3b", "--page", "nowhere/x.html"), "--page nowhere/x.html"),
        (("--model", "qwen2.5-3b", "--operations", "nowhere"), "--operations nowhere"),
        (("--model", "qwen2.5-3b", "--values", "x.yaml"), "--values"),
        (
            ("--model", "vit_huge", "--gpus-per-node", "3"),
            "--gpus-per-node 3: expected a divisor of --gpus 8",
        ),
        (("--model", "vit_huge", "--set", "strategy=single"), "expected --gpus 1 beside it, got 8"),
        (("charts/ddp", "--gpus", "3"), "with charts --set run.nodes=N"),
        (("charts/ddp", "--gpus-per-node", "3"), "with charts --set run.processesPerNode=N"),
        (("--model", "vit_huge", "--page", "charts"), "--page charts: is a folder; expected a file"),
        (("--model", "vit_huge", "--device-gib", "inf"), "'--device-gib'"),
    ],
)
def test_wrong_input_is_named(call: Call, arguments: tuple[str, ...], named: str) -> None:
    code, _, err = call(*arguments)
    assert code == 2 and named in err


def test_ranks_and_settings_come_from_what_is_rendered() -> None:
    [question] = ask_of_charts([Path("charts/llm-2d")], ["run.nodes=2"], [])
    assert (question.ranks, question.per_node, question.rows) == (16, 8, 1)
    assert question.settings["strategy"] == "nd" and question.settings["seq_len"] == "2048"


def test_micro_batches_of_a_chosen_layout_are_those_of_its_axes(call: Call) -> None:
    """pp2.dp4 of 8 ranks: 64 rows are 2 micro-batches of 8 on each of four, not one."""
    batch = ("--set", "run.config.micro_batch_size=8", "--set", "run.config.global_batch_size=64")
    _, out, _ = call("charts/llm-2d", *batch, "--no-count", "--json")
    [found] = json.loads(out)
    assert found["micro_batches"] == 2 and not found["at_most"]
    code, _, err = call("charts/llm-2d", "--set", "run.config.micro_batch_size=24", "--no-count")
    assert code == 2 and "a multiple of micro_batch_size=24 x 4 = 96" in err


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (
            ("--model", "qwen2.5-3b", "--set", "model_heads=7"),
            "model_hidden=2048: must be a multiple of 2 x ",
        ),
        (
            ("--model", "vit_huge", "--set", "model_hidden=1000", "--set", "model_heads=16"),
            "ddp, fsdp, hsdp, zero1, zero2, zero3, zeropp: model_hidden=1000: must be a multiple of heads=16",
        ),
        (("charts/llm-3d", "--set", "run.config.model_heads=7"), "llm-3d: model_hidden=2048: must be a "),
        (("charts/ddp", "--set", "run.config.model_heads=7"), "ddp: model_hidden=64: must be a multiple of "),
    ],
)
def test_impossible_sizes_are_refused_once_and_nobody_is_told_to_count(
    arguments: tuple[str, ...], refused: str, call: Call
) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "") and refused in err
    assert len(err.splitlines()) == 1 and "trainer.count" not in err


def test_charts_that_have_different_numbers_of_ranks_are_told_apart(call: Call) -> None:
    batch = "run.config.micro_batch_size=1,run.config.global_batch_size=16"
    asked = ("charts/ddp", "charts/zeropp", "--no-count", "--set", batch)
    line = "not the same number of ranks: ddp 8, zeropp 16 (2 nodes of 8); a chart sets run.nodes unless it is given"
    assert line in call(*asked, "--set", "run.processesPerNode=8")[1]
    assert "number of ranks:" not in call(*asked, "--set", "run.processesPerNode=8,run.nodes=2")[1]


def test_what_the_trainer_refuses_does_not_fit_anything(call: Call) -> None:
    batch = ("--set", "micro_batch_size=8", "--set", "global_batch_size=32")
    asked = ("--model", "qwen2.5-3b", *batch, "--json")
    _, out, _ = call(*asked)
    verdicts = {one["name"]: one["verdict"] for one in json.loads(out)}
    assert verdicts["ddp"] == "cannot start" and verdicts["nd 2d"] == "does not fit"
    code, _, err = call(*asked, "--set", "strategy=fsdp")
    assert (
        code == 2 and "fsdp: global_batch_size=32: must be a multiple of micro_batch_size=8 x 8 = 64" in err
    )


def test_how_many_gpus_a_node_has_is_said_or_asked(call: Call) -> None:
    """Those of hsdp and zeropp alone depend on it; the shipped ones were counted with four."""
    _, out, _ = call("--model", "vit_huge")
    assert "how many GPUs a node has was not said: 4, as counted, of hsdp, zeropp, which alone" in out
    code, out, _ = call("--model", "vit_huge", "--gpus-per-node", "4")
    assert code == 0 and "was not said" not in out and "not known" not in out
    code, out, _ = call("--model", "vit_huge", "--gpus-per-node", "2")
    unknown = [line.split() for line in out.splitlines() if "not known" in line]
    assert {words[0] for words in unknown} == {"hsdp", "zeropp"}
    assert out.count("the nearest file has 4 ranks on a node (wanted 2)") == 2
    assert "--per-node 2 --set model=vit_huge --set strategy=hsdp" in out
    _, out, _ = call("--model", "vit_huge", "--set", "strategy=ddp")
    assert "a node has" not in out


def test_a_micro_batch_beyond_the_counted_ones_is_called_so(call: Call, tmp_path: Path) -> None:
    asked = ("--model", "vit_huge", "--set", "strategy=ddp")
    _, out, _ = call(*asked)
    assert "167 (5.2 x counted)" in out and "micro-batches were counted up to 32: beyond, the line" in out
    assert json.loads(call(*asked, "--json")[1])[0]["counted_micro_batch_size"] == 32
    _, out, _ = call(*asked, "--device-gib", "20")
    assert "x counted" not in out and "counted up to" not in out
    _, out, _ = call(*asked, "--set", "micro_batch_size=40", "--device-gib", "20")
    assert "counted up to 32" in out
    _, out, _ = call(*asked, "--device-gib", "90000")
    assert "65536 or more (2048 x counted)" in out


def test_an_image_size_of_0_is_the_model_s_own(call: Call) -> None:
    _, out, _ = call("--model", "vit_huge", "--set", "image_size=448")
    assert "the nearest file has image_size=224 (the model's own) (wanted 448)" in out
    assert "image_size=0" not in out
    code, out, _ = call("--model", "vit_huge", "--set", "image_size=224")
    assert code == 0 and "not known" not in out


ALLOWS_ALL = 'case "$*" in *check*) echo "{}"; exit;; esac'
"""Of a program that plays the trainer: no run is refused."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plays the trainer: a program that writes a file; the real one: tests/trainer/counting/ranks."""
    made = write_file(tmp_path / "made", {"model": "vit_base"}, labels=10, channels=1)
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\n{ALLOWS_ALL}\nfor last; do :; done\necho "1 s  count 1 of 8" >&2\ncp {made} "$last"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(counting, "explain_trainer", lambda python, env: "")
    monkeypatch.setattr("sys.executable", str(program))
    return program


UNCOUNTED = ("--set", "run.config.model=vit_base", "--set", "run.config.seq_len=2048")


def test_what_no_file_answers_is_counted_and_kept(call: Call, tmp_path: Path, program: Path) -> None:
    code, _, err = call("charts/fsdp", *UNCOUNTED)
    assert code == 0 and "count 1 of 8" in err
    assert len(list((tmp_path / "cache/stratlab/operations").iterdir())) == 1
    program.unlink()
    assert call("charts/fsdp", *UNCOUNTED)[0] == 0, "the second time nothing is counted"


def test_the_printed_command_counts_a_language_model_in_a_folder_with_adapters(call: Call) -> None:
    """That it is a language model cannot be told from the path."""
    asked = ("task=text", "model_path=/data/tiny qwen", "lora_rank=4", "init=pretrained", "seq_len=192")
    settings = [word for one in asked for word in ("--set", f"run.config.{one}")]
    _, out, _ = call("charts/ddp", *settings, "--no-count")
    words = shlex.split(out.partition("`")[2].partition("`")[0])
    given = dict(text.split("=", 1) for text in _parse(words[3:]).set)
    assert given["task"] == "text" and given["model_path"] == "/data/tiny qwen"


def test_of_a_model_it_counts_only_when_told_to_and_says_so(
    call: Call, tmp_path: Path, program: Path
) -> None:
    """Of a preset of which no file is there, and then of a setting that the file does not have."""
    asked = ("--model", "vit_base", "--gpus", "8")
    code, _, err = call(*asked)
    assert (
        code == 2
        and "with --count the trainer counts every strategy here" in err
        and "count 1 of 8" not in err
    )
    code, out, err = call(*asked, "--count")
    assert code == 0 and "fsdp        8            1  fits" in out
    assert "ddp: no file answers, so the trainer counts (1 of 7)\n" in err
    assert "hsdp: no file answers, so the trainer counts (3 of 7, 0 s left)" in err
    assert "zeropp" in out and "nd" not in {line.partition(" ")[0] for line in out.splitlines()}
    code, out, err = call(*asked, "--set", "seq_len=4096")
    assert code == 3 and "the same line with --count asks the trainer here" in out and ": 7 to count," in out
    seen = tmp_path / "seen"
    program.write_text(f"#!/bin/sh\n{ALLOWS_ALL}\nenv > {seen}; echo $* >> {seen}; exit 1\n")
    code, out, _ = call(*asked, "--set", "seq_len=4096", "--set", "strategy=hsdp", "--count")
    assert code == 3 and "with --count" not in out
    asked_for = seen.read_text()
    assert "TRAINER_SEQ_LEN=4096" in asked_for and "TRAINER_GLOBAL_BATCH_SIZE=16" in asked_for
    assert "--ranks 8 --per-node 4" in asked_for and "TRAINER_DATASET=timm/imagenet-1k" in asked_for


@pytest.mark.parametrize(
    ("model", "gpus", "typed"),
    [
        ("qwen2.5-3b", 4, ("strategy=fsdp", "activation_checkpointing=blocks", "seq_len=1024")),
        ("qwen2.5-3b", 4, ("strategy=fsdp", "seq_len=4096")),
        ("qwen2.5-3b", 8, ("strategy=hsdp", "activation_checkpointing=blocks", "dp_shard=2")),
        ("qwen2.5-3b", 8, ("strategy=nd", "tp=2", "pp=2", "dp_shard=2")),
        ("qwen2.5-3b", 8, ("strategy=nd", "dimensions=2", "seq_len=4096")),
        ("vit_huge", 8, ("strategy=zero3", "offload=optimizer", "persistent_elements=0")),
        ("vit_huge", 8, ("strategy=single", "--gpus=1", "activation_checkpointing=blocks")),
        ("vit_huge", 8, ("activation_checkpointing=blocks",)),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, tuple) else str(given),
)
def test_only_what_is_typed_is_asked_of_the_trainer(
    call: Call, program: Path, tmp_path: Path, model: str, gpus: int, typed: tuple[str, ...]
) -> None:
    """Defaults of shipped files are none of it: the trainer takes each count as it is asked."""
    seen = tmp_path / "seen"
    program.write_text(
        f"#!/bin/sh\n{ALLOWS_ALL}\n(env; echo ARGS=$*) | grep -E '^(TRAINER_|ARGS)' >> {seen}; exit 1\n"
    )
    sets = [word for text in typed if not text.startswith("--") for word in ("--set", text)]
    options = [text for text in typed if text.startswith("--")] or [f"--gpus={gpus}"]
    call("--model", model, *options, *sets, "--count")
    asked, env = 0, dict[str, str]()
    for name, _, text in (line.partition("=") for line in seen.read_text().splitlines()):
        if name != "ARGS":
            env[name] = text
            continue
        words = text.split()
        ranks, per_node = int(words[words.index("--ranks") + 1]), int(words[words.index("--per-node") + 1])
        read_countable({"TRAINER_RUN": "count", **env}, ranks, 0, per_node)
        given = {one.partition("=")[0] for one in typed}
        for knob in ("persistent_elements", "zeropp", "reduce_bucket_mib", "cp_kind"):
            assert knob in given or f"TRAINER_{knob.upper()}" not in env
        asked, env = asked + 1, {}
    assert asked == (1 if any(one.startswith("strategy=") for one in typed) else 7)


def test_a_count_of_one_strategy_hides_no_other(call: Call, program: Path) -> None:
    """The program's file is of fsdp; the others are still asked about, and counted when told to."""
    asked = ("--model", "vit_base", "--gpus", "8")
    call(*asked, "--set", "strategy=fsdp", "--count")
    _, out, _ = call(*asked, "--json")
    assert [one["name"] for one in json.loads(out)] == [
        "fsdp", "ddp", "hsdp", "zero1", "zero2", "zero3", "zeropp",
    ]  # fmt: skip
    _, _, err = call(*asked, "--count")
    assert "(6 of 6" in err and "zeropp: no file answers" in err
    _, out, _ = call("--model", "qwen2.5-3b", "--json")
    assert {"nd 2d", "ddp"} <= {one["name"] for one in json.loads(out)}


def test_the_trainer_s_complaints_are_in_the_words_typed(call: Call, program: Path) -> None:
    program.write_text(
        f"#!/bin/sh\n{ALLOWS_ALL}\necho 'TRAINER_DP_SHARD=3: expected a divisor' >&2\nexit 2\n"
    )
    _, out, _ = call("--model", "vit_huge", "--set", "dp_shard=3", "--set", "strategy=hsdp", "--count")
    assert "dp_shard=3: expected a divisor" in out
    assert "run.config" not in out and "TRAINER_" not in out
    _, out, _ = call("charts/fsdp", *UNCOUNTED)
    assert "run.config.dp_shard=3" in out


@pytest.mark.parametrize(("code", "offered"), [(2, False), (1, True)], ids=["refused", "failed"])
def test_what_the_trainer_refuses_to_count_is_not_offered_to_be_counted(
    code: int, offered: bool, call: Call, program: Path
) -> None:
    program.write_text(
        f"#!/bin/sh\n{ALLOWS_ALL}\necho TRAINER_COMPILE=true: cannot be counted >&2\nexit {code}\n"
    )
    _, out, _ = call("charts/fsdp", *UNCOUNTED)
    assert "run.config.compile=true" in out and ("where no file answers" in out) is offered


@pytest.mark.parametrize("reason", ["Not a directory", "Read-only file system"])
def test_without_a_cache_it_answers_and_says_so_once(
    call: Call, tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Two strategies are counted; the program's file is of the first alone, and the second is counted each time."""
    place = tmp_path / reason
    place.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    if reason.startswith("Read"):
        place.unlink()
        refusal = OSError(30, reason)
        monkeypatch.setattr(counting, "_replace", lambda *given: (_ for _ in ()).throw(refusal))
    code, out, err = call("charts/fsdp", "charts/hsdp", *UNCOUNTED, "--json")
    assert code == 0 and len(json.loads(out)) == 2
    assert err.count("count 1 of 8") == 2 and err.count(f"cannot be written ({reason})") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "qwen2.5-3b", "--set", "strategy=ddp", "--set", "offload=optimizer"), "ddp: offload="),
        (("--model", "qwen2.5-3b", "--set", "strategy=zero2", "--set", "tp=2", "--count"), "zero2: tp"),
        (("--model", "vit_huge", "--set", "strategy=ddp", "--set", "image_size=384"), "ddp: image_size=384"),
        (("charts/ddp", "--set", "run.config.offload=optimizer"), "ddp: run.config.offload=optimizer"),
        (
            ("charts/ddp", "--set", "run.config.lora_targets=qkv", "--no-count"),
            "ddp: run.config.lora_targets",
        ),
    ],
)
def test_what_the_trainer_refuses_of_what_was_typed_ends_with_2(
    call: Call, arguments: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_run_trainer", lambda *_: pytest.fail("it was counted"))
    code, out, err = call(*arguments)
    assert (code, out) == (2, "") and f"error: {named}" in err and "TRAINER_" not in err


def test_what_cannot_be_counted_is_not_known(call: Call) -> None:
    """A run of it starts, so nothing that was typed is wrong; the trainer says so without counting anything."""
    code, out, _ = call("--model", "vit_huge", "--set", "strategy=ddp", "--set", "compile=true", "--count")
    assert code == 3 and "compile=true" in out
    assert call("--model", "qwen2.5-3b", "--set", "strategy=ddp", "--set", "lora_rank=16")[0] == 3


def test_one_strategy_that_refuses_a_setting_hides_no_other(call: Call) -> None:
    _, out, _ = call("--model", "qwen2.5-3b", "--set", "offload=optimizer", "--json")
    verdicts = {one["name"]: one["verdict"] for one in json.loads(out)}
    assert verdicts["ddp"] == "cannot start" and verdicts["zero2"] == "not known"

"""The real worker on a language model: one data order, one start, one loss, and complete files."""

import functools
import json
from pathlib import Path
from typing import get_args

import pytest

from stratlab_spec.settings.config import Config
from stratlab_spec.settings.fields import Strategy
from tests.ranks import fork_ranks
from tests.trainer.kept_runs import be_worker, lines, read

STEPS = 9
ROWS = 16  # of a step: two micro-batches on each of two processes
EVERY = [*get_args(Strategy), "nd pp2", "nd tp2", "nd lora", "nd padded"]
MORE = {
    "nd pp2": {"TRAINER_DIMENSIONS": "2", "TRAINER_CHECKPOINT_EVERY": "4"},
    "nd tp2": {"TRAINER_LAYOUT": "given", "TRAINER_TP": "2"},
    "nd lora": {"TRAINER_LAYOUT": "given", "TRAINER_TP": "2", "TRAINER_LORA_RANK": "4"},
    "nd padded": {"TRAINER_PACKING": "false"},
}
LOSS_GATE = 1e-5


def settings(results: Path, name: str, **more: str) -> dict[str, str]:
    return {
        "TRAINER_RUN": name.replace(" ", "-"), "TRAINER_RESULTS": str(results),
        "TRAINER_STRATEGY": name.partition(" ")[0], "TRAINER_MODEL": "qwen_tiny", "TRAINER_DATASET": "arithmetic",
        "TRAINER_TRAIN_SAMPLES": "96", "TRAINER_VALIDATION_FRACTION": "0.02", "TRAINER_SEQ_LEN": "128",
        "TRAINER_PRECISION": "fp32", "TRAINER_STEPS": str(STEPS), "TRAINER_GLOBAL_BATCH_SIZE": str(ROWS),
        "TRAINER_MICRO_BATCH_SIZE": "4", "TRAINER_EVALUATE_EVERY": "5", "TRAINER_PROFILE_FIRST_STEP": "4",
        "TRAINER_PROFILE_STEPS": "1", "STRATLAB_LAUNCHER": "test", **MORE.get(name, {}), **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run directory of a strategy, trained once; all in one comparison, so that they share the tokens."""
    results = tmp_path_factory.mktemp("results")

    @functools.cache
    def of(name: str) -> Path:
        from trainer.prepare.preparation import ensure_cache

        env = settings(results, name)
        ensure_cache(Config.from_env(env), lambda _: None)
        world_size = 1 if name == "single" else 2
        done = fork_ranks(be_worker, world_size, env=env, timeout_s=300)
        assert [r.exit_code for r in done] == [0] * world_size, "\n".join(r.output[-3000:] for r in done)
        return results / "default" / env["TRAINER_RUN"]

    return of


def test_a_language_model_runs_as_alone_and_its_loss_falls(finished):
    check_files(finished("nd pp2"))
    check_same_training(finished("nd pp2"), finished("single"), LOSS_GATE)
    losses = [line["loss"] for line in lines(finished("single"), "train")]
    assert losses[-1] < losses[0] - 0.05


def check_files(folder: Path) -> None:
    summary, config = read(folder, "summary.json"), read(folder, "config.json")
    promised = Path("docs/formats.md").read_text()
    assert [field for field in summary if f'"{field}"' not in promised] == []
    assert summary["tokens_per_s"] >= summary["useful_tokens_per_s"] > 0
    assert summary["mfu_pct"] is None and summary["mfu_literature_pct"] is None  # no peak is known for a CPU
    evaluation = read(folder, "evaluation.json")
    assert evaluation["perplexity"] == summary["test_perplexity"] and evaluation["labels"] > 0
    assert "test_accuracy_pct" not in summary and "image_size" not in config["resolved"]
    train = lines(folder, "train")
    assert [line["step"] for line in train] == list(range(1, STEPS + 1))
    assert {line["tokens"] for line in train} == {ROWS * 128}
    assert all(0 < line["useful_tokens"] <= line["tokens"] for line in train)
    assert all(line["useful_tokens"] < line["token_pairs"] <= 128 * line["useful_tokens"] for line in train)
    assert config["resolved"]["attention"] == ("mask" if config["config"]["packing"] else "causal")
    assert 0 < summary["flops_per_useful_token"] < summary["flops_per_token"]
    assert {"validation_loss", "validation_perplexity"} <= lines(folder, "eval")[0].keys()
    ranks = [json.loads(path.read_text()) for path in folder.glob("ranks/*.json")]
    assert all(rank["done"] and rank["coordinates"] for rank in ranks)


def trains_as_alone(name: str) -> bool:
    """Adapters and padding make another model and other rows."""
    return name not in ("single", "nd lora", "nd padded")


def check_same_training(ours: Path, theirs: Path, gate: float) -> None:
    for fact in ("initial_weights_sha256", "data_order_sha256", "parameters"):
        assert read(ours, "summary.json")[fact] == read(theirs, "summary.json")[fact]
    apart = [
        abs(a["loss"] - b["loss"]) for a, b in zip(lines(ours, "train"), lines(theirs, "train"), strict=True)
    ]
    assert max(apart) < gate
    assert abs(read(ours, "evaluation.json")["loss"] - read(theirs, "evaluation.json")["loss"]) < 1e-4


def test_the_layout_is_recorded(finished):
    check_layout(finished("nd pp2"), "nd pp2")


def check_layout(folder: Path, name: str) -> None:
    layout, summary = read(folder, "config.json")["resolved"]["layout"], read(folder, "summary.json")
    assert summary["layout"] == layout["name"] == {"nd": "dp2x1", "nd pp2": "pp2", "nd tp2": "tp2"}[name]
    assert summary["degenerate"] == (name == "nd pp2")  # 2 dimensions promise data as well
    assert summary["missing_dimensions"] == (["data"] if name == "nd pp2" else [])
    assert set(summary["wire_bytes_per_axis"]) >= {
        {"nd": "dp_replicate", "nd pp2": "pp", "nd tp2": "tp"}[name]
    }


def test_the_exported_weights_are_judged_anew_in_one_process(tmp_path, finished):
    folder = finished("nd pp2")
    assert (folder / "model" / "tokenizer_config.json").is_file()

    def judge() -> None:
        from trainer.evaluation import command as evaluate

        raise SystemExit(evaluate.main([str(folder), "--output", str(tmp_path / "again.json")]))

    again = fork_ranks(judge, 1)
    assert again[0].exit_code == 0, again[0].output[-3000:]
    assert abs(read(tmp_path, "again.json")["loss"] - read(folder, "evaluation.json")["loss"]) < 1e-5

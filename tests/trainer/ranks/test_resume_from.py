"""A run goes on from a checkpoint of another one: real workers, digits; and what is refused."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.trainer.kept_runs import STEPS, lines, read, settings, train
from trainer.checkpoint.source import open_source
from trainer.launch.preflight import check
from trainer.settings.config import Config, ConfigError

ALL = {"TRAINER_CHECKPOINT_KEEP": "9", "TRAINER_CHECKPOINT_KEEP_FINISHED": "all"}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The results folder with a run of ddp in two processes and all its checkpoints."""
    results = tmp_path_factory.mktemp("source")
    train(results, "ddp", 2, **ALL)
    return results


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(folder) if line["kind"] == "train"}


@pytest.mark.parametrize(("strategy", "ranks"), [("fsdp", 2), ("zero2", 1)])
def test_a_run_goes_on_from_another_one(source, strategy, ranks):
    whole = source / "default" / "ddp"
    before = contents(whole)
    moved = {"TRAINER_RESUME_FROM": "default/ddp/checkpoints/step_00000005", "TRAINER_COMPARISON": "moved"}
    folder = train(source, strategy, ranks, **moved).parents[1] / "moved" / strategy
    assert contents(whole) == before
    seen, wanted = losses(folder), losses(whole)
    assert list(seen) == list(range(6, STEPS + 1))
    assert seen == pytest.approx({step: wanted[step] for step in seen}, abs=1e-5)
    record = read(folder, "config.json")["resolved"]["resumed_from"]
    manifest = whole / "checkpoints" / "step_00000005" / "manifest.json"
    assert record == {
        "run": "default/ddp",
        "step": 5,
        "strategy": "ddp",
        "world_size": 2,
        "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
    }
    a, b = read(folder, "summary.json"), read(whole, "summary.json")
    assert [a[name] for name in ("data_order_sha256", "initial_weights_sha256")] == [
        b[name] for name in ("data_order_sha256", "initial_weights_sha256")
    ]
    assert a["test_loss"] == pytest.approx(b["test_loss"], abs=1e-4)


def test_a_broken_one_is_left_out_and_not_touched(source, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(source / "default", results / "default")
    whole = results / "default" / "ddp"
    newest = whole / "checkpoints" / "step_00000012"
    damaged = next((newest / "engine").glob("*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    before = contents(whole)
    folder = train(results, "single", 1, TRAINER_RESUME_FROM="default/ddp")
    assert contents(whole) == before
    assert read(folder, "config.json")["resolved"]["resumed_from"]["step"] == 10
    assert min(losses(folder)) == 11
    events = [line["text"] for line in lines(folder) if line.get("name") == "checkpoint skipped"]
    assert len(events) == 1 and "checkpoint of step 12 is broken" in events[0]
    log = (folder / "ranks" / "rank0.log").read_text()
    assert events[0] in log and "starts from the checkpoint" in log.splitlines()[0]


def refusal(results: Path, strategy: str = "fsdp", **more: str) -> str:
    given = {"TRAINER_RESUME_FROM": "default/ddp"} | more
    env = settings(results, strategy, **given)
    with pytest.raises(ConfigError) as refused:
        check(Config.from_env(env), 2, env)
    return str(refused.value)


def test_what_is_another_training_is_refused_before_ranks_start(source):
    for name, value in (
        ("optimizer", "sgd"),
        ("model", "vit_tiny"),
        ("seed", "1"),
        ("lr", "0.5"),
        ("global_batch_size", "16"),
        ("lora_rank", "2"),
    ):
        more = {f"TRAINER_{name.upper()}": value}
        if name == "lora_rank":
            more["TRAINER_MODEL"] = "vit_tiny"
        said = refusal(source, **more)
        assert "is another training: " in said and f"{name}=" in said and "(was " in said, said
        assert "name its folder `model` in TRAINER_MODEL_PATH" in said
    assert "steps=20" in refusal(source, TRAINER_STEPS="20")  # its learning rate follows a cosine
    both = refusal(source, TRAINER_LR="0.5", TRAINER_SEED="3")
    assert "lr=0.5 (was 0.001" in both and "seed=3 (was 0" in both, "all at once"


def test_what_is_no_other_run_is_refused(source, tmp_path):
    assert "is no run; name a folder" in refusal(source, TRAINER_RESUME_FROM="default")
    assert "is not below TRAINER_RESULTS" in refusal(source, TRAINER_RESUME_FROM="../elsewhere/ddp")
    (source / "link").symlink_to(tmp_path)
    assert "is not below TRAINER_RESULTS" in refusal(source, TRAINER_RESUME_FROM="link/ddp")
    (source / "link").unlink()
    one = "default/ddp/checkpoints/step_00000007"
    assert "it has those of steps 5, 6, 10, 12" in refusal(source, TRAINER_RESUME_FROM=one)
    with pytest.raises(ConfigError, match="is this run, which goes on from its own"):
        open_source(Config.from_env(settings(source, "ddp", TRAINER_RESUME_FROM="default/ddp")))


def test_facts_that_the_ranks_alone_know_are_compared_by_them(source, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(source / "default", results / "default")
    known = results / "default" / "ddp" / "config.json"
    known.write_text(known.read_text().replace('"initial_weights_sha256": "', '"initial_weights_sha256": "0'))
    folder = train(
        results, "single", 1, codes=(2,), TRAINER_RESUME_FROM="default/ddp/checkpoints/step_00000005"
    )
    assert not (folder / "config.json").exists()


def test_a_second_attempt_goes_on_from_the_same_checkpoint_or_not_at_all(source, tmp_path):
    def die_at_once() -> None:
        import os

        from trainer import worker

        worker.train = lambda *a, **k: os._exit(77)
        raise SystemExit(worker.main())

    results = tmp_path / "results"
    shutil.copytree(source / "default", results / "default")
    checkpoints = results / "default" / "ddp" / "checkpoints"
    moved = {"TRAINER_RESUME_FROM": "default/ddp"}
    shutil.move(checkpoints / "step_00000012", tmp_path / "newest")
    train(results, "single", 1, die_at_once, codes=(77,), **moved)
    shutil.move(tmp_path / "newest", checkpoints / "step_00000012")
    folder = train(results, "single", 1, **moved)
    assert min(losses(folder)) == 11, "a newer one is there now, and the run began with the older one"

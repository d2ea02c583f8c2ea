"""What the kernel says of a kill, and the ladder of a run that does not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stratlab_spec import exit_codes as failures
from stratlab_spec.plan import resolve_plan
from stratlab_spec.run_directory import RunDirectory, find_asked, read_own_rungs
from stratlab_spec.settings.config import Config
from tests.codes import find_codes
from trainer.launch.memory_limits import MOST_RUNGS, ContainerMemory, Ladder
from trainer.launch.preflight import Pods


def write(folder: Path, oom: int, limit: str = str(4 << 30), peak: str = str(3 << 30)) -> Path:
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 12\noom {oom}\noom_kill {oom}\n")
    (folder / "memory.max").write_text(limit)
    (folder / "memory.peak").write_text(peak)
    return folder


def test_a_kill_by_the_kernel_is_told_from_one_by_somebody_else(tmp_path):
    memory = ContainerMemory(write(tmp_path, 1))
    said = memory.explain_kill()
    assert find_codes(said) == ["SL-kill-within-limit"] and "4.00 GiB" in said and "3.00 GiB" in said
    write(tmp_path, 2)
    said = memory.explain_kill()
    assert find_codes(said) == ["SL-oom-kill-limit"] and "4.00 GiB" in said and "3.00 GiB" in said


def test_without_a_limit_there_may_be_no_container(tmp_path):
    memory = ContainerMemory(write(tmp_path, 1, limit="max"))
    assert find_codes(memory.explain_kill()) == ["SL-kill-from-outside"]
    write(tmp_path, 3, limit="max")
    said = memory.explain_kill()
    assert find_codes(said) == ["SL-oom-kill-machine"] and "GiB" not in said and "run.resources" not in said
    assert ContainerMemory(tmp_path / "none").explain_kill() == ""


GIVEN = {
    "TRAINER_RUN": "try", "TRAINER_MODEL": "vit_tiny", "TRAINER_IMAGE_SIZE": "32",
    "TRAINER_STEPS": "20", "TRAINER_GLOBAL_BATCH_SIZE": "64", "TRAINER_MICRO_BATCH_SIZE": "32",
    "TRAINER_OOM_FALLBACK": "true",
}  # fmt: skip


@pytest.fixture
def climb(tmp_path) -> Callable[..., tuple[list, str, dict[str, str]]]:
    """Climbs from out of memory to out of memory: (rungs, what was said at the end, the ranks' environment)."""

    def climb(nodes: int = 1, codes: tuple[int, ...] = (), **settings: str):
        env = GIVEN | {"TRAINER_RESULTS": str(tmp_path), "PET_NPROC_PER_NODE": "2"} | settings
        folder = RunDirectory(tmp_path, "default", "try")
        folder.create()
        left = list(codes) or [failures.OUT_OF_MEMORY] * 9
        config = Config.from_env(env)
        ladder = Ladder(config, folder, Pods(nodes, 2), env, resolve_plan(config, 2 * nodes, 2, 1000))
        _, said = ladder.climb(lambda: (left.pop(0), "out of memory"), lambda code: None)
        return (json.loads(folder.rungs.read_text()) if folder.rungs.exists() else []), said, env

    return climb


def settings_of(rungs: list) -> list[dict]:
    return [rung["settings"] for rung in rungs]


CHECKPOINTING = {"activation_checkpointing": "blocks"}


def halves(*sizes: int) -> list[dict]:
    return [{"micro_batch_size": size} for size in sizes]


LADDERS = {
    "ddp": [*halves(16, 8), CHECKPOINTING, {"strategy": "fsdp"}, {"offload": "all"}],
    "zero1": [*halves(16, 8), CHECKPOINTING, {"strategy": "zero2"}, {"strategy": "zero3"}],
    "zero3": [*halves(16, 8), CHECKPOINTING, {"offload": "optimizer"}, {"offload": "all"}],
    "fsdp": [*halves(16, 8), CHECKPOINTING, {"offload": "all"}, *halves(4)],
}


@pytest.mark.parametrize("strategy", LADDERS)
def test_the_rungs_of_a_strategy(climb, strategy):
    rungs, said, env = climb(TRAINER_STRATEGY=strategy)
    assert settings_of(rungs) == LADDERS[strategy] and len(rungs) == MOST_RUNGS
    assert (find_codes(said), read_own_rungs(env)) == (["SL-ladder-ended"], rungs)
    reached, last = Config.from_env(env), {k: v for rung in rungs for k, v in rung["settings"].items()}
    assert {name: getattr(reached, name) for name in last} == last
    assert (reached.global_batch_size, reached.lr) == (64, 1e-3)
    asked = {"micro_batch_size": 32, "activation_checkpointing": "none"}
    assert find_asked(rungs) == find_asked(rungs) | asked


def test_what_the_rules_refuse_is_passed_over_with_the_reason(climb):
    rungs, said, _ = climb(TRAINER_STRATEGY="ddp", TRAINER_STATIC_GRAPH="true")
    assert settings_of(rungs) == [CHECKPOINTING]
    (passed,) = rungs[0]["passed_over"]
    assert passed["settings"] == {"micro_batch_size": 16} and "TRAINER_STATIC_GRAPH" in passed["reason"]
    assert find_codes(said)[-1] == "SL-ladder-empty" and "{'strategy': 'fsdp'}" in said


def test_batch_norm_keeps_its_micro_batch(climb):
    rungs, _, _ = climb(TRAINER_MODEL="resnet", TRAINER_STRATEGY="ddp")
    assert settings_of(rungs)[0] == CHECKPOINTING
    (passed,) = rungs[0]["passed_over"]
    assert passed["settings"] == {"micro_batch_size": 16}
    assert find_codes(passed["reason"]) == ["SL-ladder-batch-norm"]


def test_another_code_is_no_reason_to_climb(climb):
    for code in (failures.CRASHED, failures.NOT_FINITE, failures.TERMINATED, failures.PEER_LOST):
        assert climb(codes=(code,), TRAINER_STRATEGY="ddp")[0] == []
    assert climb(TRAINER_STRATEGY="ddp", TRAINER_OOM_FALLBACK="false")[0] == []

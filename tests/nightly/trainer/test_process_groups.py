"""Every process group of a real run, whoever made it, has the run's time-out: counted where torch keeps them."""

import json
from pathlib import Path

import pytest

from stratlab_spec.settings.config import Config
from tests.ranks import fork_ranks
from tests.trainer.ranks import test_text_worker
from tests.trainer.ranks.test_hangs import settings
from tests.trainer.runs import run_worker
from trainer.distributed.consensus import DISK_GROUP, SLOW_VOLUME_S
from trainer.prepare.preparation import ensure_cache

TIMEOUT_S = 77
LEAST_GROUPS = {
    "fsdp": 2,
    "hsdp": 3,
    "zeropp": 4,  # and one inside the node
    "nd pp2": 7,  # five axes, and the tied weights
    "nd moe": 6,
}
"""On rank 0, the default group included."""
AXES = {"hsdp": {"TRAINER_DP_SHARD": "2", "TRAINER_DP_REPLICATE": "2", "TRAINER_GLOBAL_BATCH_SIZE": "64"}}
MOE = {
    "TRAINER_MODEL": "qwen_moe_tiny",
    "TRAINER_LAYOUT": "given",
    "TRAINER_EP": "2",
    "TRAINER_DP_SHARD": "2",
}


def be_worker_and_tell() -> None:
    """The groups, just before the run gives them up; one more is made as a library would, late and without a word."""
    import os

    import torch.distributed as dist

    destroy = dist.destroy_process_group

    def tell() -> None:
        dist.new_group(backend="gloo", group_desc="a library's")
        dist.barrier()  # else the first to leave closes what the others are still connecting
        found = []
        for group in dist.distributed_c10d._world.pg_names:
            for device in group._device_types:
                timeout = group._get_backend(device).options._timeout.total_seconds()
                found.append((group.group_desc, len(dist.get_process_group_ranks(group)), timeout))
        Path(os.environ["TRAINER_RESULTS"], f"groups{os.environ['RANK']}.json").write_text(json.dumps(found))
        destroy()

    dist.destroy_process_group = tell  # type: ignore[assignment]
    raise SystemExit(run_worker())


def environment(results: Path, name: str) -> dict[str, str]:
    strategy = name.partition(" ")[0]
    more = {"TRAINER_COLLECTIVE_TIMEOUT_S": str(TIMEOUT_S), **AXES.get(name, {})}
    if strategy != "nd":
        return settings(results, strategy, **more)
    env = test_text_worker.settings(results, name, TRAINER_PROFILE_STEPS="0", **more)
    env |= MOE if name == "nd moe" else {}
    ensure_cache(Config.from_env(env), print)
    return env


@pytest.mark.parametrize("name", LEAST_GROUPS)
def test_every_group_of_a_run_has_its_time_out(name, tmp_path):
    ranks = 4 if name == "hsdp" else 2
    ended = fork_ranks(be_worker_and_tell, ranks, env=environment(tmp_path, name))
    assert [r.exit_code for r in ended] == [0] * ranks, ended[0].output[-2000:]
    for rank in range(ranks):
        found = json.loads((tmp_path / f"groups{rank}.json").read_text())
        assert len(found) > LEAST_GROUPS[name], found
        # what waits for a slow volume has its own, an hour at least
        assert {timeout for name, _, timeout in found if name == DISK_GROUP} == {SLOW_VOLUME_S}, found
        assert {timeout for name, _, timeout in found if name != DISK_GROUP} == {TIMEOUT_S}, found

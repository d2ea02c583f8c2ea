"""Start and end an attempt: its number, its log, the checkpoint to resume, and finally the exported weights.

Rank 0 chooses a checkpoint while all ranks compare hashes, each for its share of the files:

rank 0          check manifest ─▶ send files ─▶ own share ─▶ collect answers ─▶ next older checkpoint, or done
other ranks                                     own share ─▶ answer ─▶ wait for more files, or for the end
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from stratlab_spec.exit_codes import is_storage_full
from stratlab_spec.registry import describe_starting_weights
from stratlab_spec.run_directory import RUNGS, find_asked, read_line, write_json
from stratlab_spec.settings.config import ConfigError
from stratlab_spec.settings.rules import swapped_problems
from stratlab_spec.settings.wording import SpellingFormatter
from trainer.checkpoint.folder import CheckpointFolder, Chosen, compare_files, find_problem
from trainer.checkpoint.source import RESUMED_FROM, choose_origin
from trainer.distributed.world import gather_objects
from trainer.engine import Engine
from trainer.hang_detection.rank_zero_task import do_alone, leave_alone
from trainer.run import Run, describe_run

log = logging.getLogger("trainer")
Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Attempt:
    """One start of a run; equal on every rank."""

    number: int
    chosen: Chosen | None
    """The checkpoint to resume; None: start from the beginning."""
    skipped: list[str]
    """A sentence for each newer checkpoint that is broken."""
    traces_complete: bool
    """Whether an earlier attempt has recorded its steps."""
    is_moved: bool = False
    """Whether the checkpoint is from another run or rung, possibly of another strategy."""
    nodes: list[str] = field(default_factory=list)
    """The machine of each rank; "" if unknown."""

    @property
    def from_step(self) -> int:
        """Return the last step that the checkpoint covers."""
        return self.chosen.state.step if self.chosen else 0


def open_attempt(run: Run, resolved: dict[str, Any], launcher: str, group: Any) -> Attempt:
    """Create the run directory, choose a checkpoint and start an attempt on rank 0; then log on every rank.

    Args:
        group: process group of all ranks for reading checkpoints together (`open_disk_group`).
    """
    config, world, folder = run.config, run.world, run.folder
    hosts = gather_objects((world.host, world.node), group)
    opened: list[Any] = [None]
    with leave_alone(run.pulse):  # hashing takes minutes; the time-out of `group` limits it
        if run.writes:
            opened = [_open(run, resolved, hosts, launcher, group)]
        else:
            help_checking(group)
        dist.broadcast_object_list(opened, group=group)
    attempt: Attempt = opened[0]
    handler = RankLog(folder.rank_log(world.rank))
    handler.setFormatter(SpellingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    start = f"the checkpoint {attempt.chosen.path}" if attempt.chosen else describe_starting_weights(config)
    log.info(
        f"{config.run}: attempt {attempt.number}, rank {world.rank} of {world.size} on {world.host}, "
        f"{world.device_name}, {world.backend}, starts from {start}"
    )
    for sentence in attempt.skipped if run.writes else []:
        log.warning("%s", sentence)
    return attempt


class RankLog(logging.FileHandler):
    """A log handler that prints one message about a full volume instead of a traceback per lost line."""

    _is_reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        failure = sys.exc_info()[1]
        if failure is None or not is_storage_full(failure):
            super().handleError(record)
        elif not self._is_reported:
            self._is_reported = True
            text = f"{self.baseFilename}: {failure}; training continues without this log"
            print(text, file=sys.stderr, flush=True)


def _open(run: Run, resolved: dict[str, Any], hosts: list[Any], launcher: str, group: Any) -> Attempt:
    config, world, folder = run.config, run.world, run.folder
    folder.create()
    if world.backend == "nccl":  # torch writes its flight recorder's dump only into an existing folder
        folder.flight_recorder.mkdir(parents=True, exist_ok=True)
    number = 1 + max((line["attempt"] for line in folder.read_attempts()), default=0)
    look = partial(find_problem_together, group=group)
    checkpoints, chosen, skipped = CheckpointFolder(folder), None, list[str]()
    checkpoints.remove_leftovers()
    if config.resume == "auto":
        chosen, skipped = checkpoints.choose(look)
    else:
        checkpoints.set_all_aside()
    before = {} if number == 1 else read_line(folder.config.read_bytes())
    record = before.get("resolved", {}).get(RESUMED_FROM)
    if problems := swapped_problems(before.get("resolved", {}), resolved, config) if chosen else []:
        raise ConfigError(problems)
    starts_over = chosen is None
    is_from_another = starts_over and bool(config.resume_from)
    if is_from_another:
        chosen, record, broken = choose_origin(config, resolved, run.plan.steps, record, look)
        skipped += broken
    dist.broadcast_object_list([None], group=group)  # signals to the other ranks that all checks are done
    rungs = resolved.get(RUNGS, [])
    resolved = resolved | ({RESUMED_FROM: record} if record else {})
    if number == 1 or starts_over:
        asked = config.model_copy(update=find_asked(rungs))
        described = describe_run(asked, resolved, *map(list, zip(*hosts, strict=True)))
        write_json(folder.config, {**described, "run_uid": before.get("run_uid", described["run_uid"])})
    elif rungs != before["resolved"].get(RUNGS, []):
        write_json(folder.config, before | {"resolved": resolved})
    nodes = [node for _, node in hosts]
    is_moved = is_from_another or bool(rungs)
    attempt = Attempt(number, chosen, skipped, folder.has_all_traces(), is_moved, nodes)
    facts = {"from_step": attempt.from_step, "world_size": world.size, "host": world.host}
    facts |= {"nodes": sorted({node for node in nodes if node})}
    facts |= {RESUMED_FROM: record["run"]} if record and is_from_another else {}
    facts |= {"rung": len(rungs)} if rungs else {}
    folder.append_attempt("started", number, launcher, **facts)
    folder.keep_reserve(world.size)
    return attempt


def find_problem_together(folder: Path, group: Any) -> str | None:
    """Run `find_problem` on rank 0 while the other ranks run `help_checking`."""

    def compare(_: Path, files: Files) -> str | None:
        dist.broadcast_object_list([(folder, files)], group=group)
        return _compare_share(folder, files, group)

    return find_problem(folder, compare)


def help_checking(group: Any) -> None:
    """Compare files on ranks above 0 until rank 0 has chosen a checkpoint."""
    while True:
        asked: list[Any] = [None]
        dist.broadcast_object_list(asked, group=group)
        if asked[0] is None:
            return
        folder, files = asked[0]
        _compare_share(folder, files, group)


def _compare_share(folder: Path, files: Files, group: Any) -> str | None:
    own = compare_files(folder, deal(files, dist.get_world_size())[dist.get_rank()])
    answers = gather_objects(own, group)
    return next((answer for answer in answers if answer), None)


def deal(files: Files, ranks: int) -> list[Files]:
    """Divide files into shares of about equal bytes, the largest files first."""
    shares: list[Files] = [{} for _ in range(ranks)]
    sizes = [0] * ranks
    for name in sorted(files, key=lambda name: (-files[name]["bytes"], name)):
        rank = sizes.index(min(sizes))
        shares[rank][name] = files[name]
        sizes[rank] += files[name]["bytes"]
    return shares


def export_weights(
    run: Run, engine: Engine, model: nn.Module, best: dict[str, float] | None, facts: dict[str, Any]
) -> None:
    """Export model/ from the final weights, and best_model/ if an earlier checkpoint is best; collective.

    If the weights do not fit on the volume, they are left out with a warning.
    Afterwards the engine holds the best weights.

    Args:
        model: as built; the exporter reads its architecture.
        best: validation of the best checkpoint.
        facts: facts of the data for the exporter.
    """

    def export(target: Path) -> None:
        write = partial(_write_weights, run, engine.gather_state(), model, facts, target)
        do_alone(f"writing {target.name}", write, run.pulse, run.config.collective_timeout_s)

    export(run.folder.model)
    if best and int(best["step"]) != run.plan.steps:
        engine.load(CheckpointFolder(run.folder).step(int(best["step"])) / "engine")
        export(run.folder.best_model)


def _write_weights(
    run: Run, state: dict[str, Tensor], model: nn.Module, facts: dict[str, Any], target: Path
) -> None:
    from trainer.models.export import export_model

    aside = target.with_name(f".tmp-{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        export_model(model, state, run.config, facts, aside)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(aside, target)
        log.info("weights in Hugging Face format: %s", target)
    except Exception as failure:  # safetensors raises its own error for a full volume
        shutil.rmtree(aside, ignore_errors=True)
        if not is_storage_full(failure):
            raise
        log.warning(
            "%s: weights not written, the run ends without them: %s [SL-weights-left-out]", target, failure
        )

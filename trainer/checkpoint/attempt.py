"""One start of a run: its number, its log, and what it goes on from."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch.distributed as dist

from trainer.checkpoint.checking import end_checking, find_problem_together, help_checking
from trainer.checkpoint.folder import CheckpointFolder, Chosen
from trainer.checkpoint.source import RESUMED_FROM, choose_origin
from trainer.failures import is_storage_full
from trainer.hangs.alone import leave_alone
from trainer.record.provenance import describe_run
from trainer.record.run_directory import read_line, write_json
from trainer.record.rungs import RUNGS, find_asked
from trainer.run import Run
from trainer.settings.config import Config, ConfigError
from trainer.settings.continuation import swapped_problems
from trainer.settings.spelling import SpellingFormatter
from trainer.settings.starting_weights import describe_starting_weights

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Attempt:
    """Equal on every rank."""

    number: int
    chosen: Chosen | None
    """The checkpoint to go on from; None: from the start."""
    skipped: list[str]
    """A sentence for each newer checkpoint that is broken."""
    traces_complete: bool
    """An earlier attempt has recorded its steps."""
    is_moved: bool = False
    """The checkpoint is another run's, or of another rung, and may be of another strategy."""
    nodes: list[str] = field(default_factory=list)
    """The machine of each rank; "" where it is not known."""

    @property
    def from_step(self) -> int:
        """The last step that need not be done again."""
        return self.chosen.state.step if self.chosen else 0


def open_attempt(run: Run, resolved: dict[str, Any], launcher: str, group: Any) -> Attempt:
    """Rank 0 makes the run directory, chooses a checkpoint and starts an attempt; every rank then logs into it.

    Args:
        group: of all ranks, in which they read the checkpoints together (`open_disk_group`).
    """
    config, world, folder = run.config, run.world, run.folder
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, (world.host, world.node), group=group)
    found: list[Any] = [None]
    with leave_alone(run.pulse):  # hashes take minutes; the group's own time-out bounds them
        if run.writes:
            found = [_open(run, resolved, hosts, launcher, group)]
        else:
            help_checking(group)
        dist.broadcast_object_list(found, group=group)
    attempt: Attempt = found[0]
    handler = RankLog(folder.rank_log(world.rank))
    handler.setFormatter(SpellingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    log.info(
        "%s: attempt %d, rank %d of %d on %s, %s, starts from %s",
        config.run,
        attempt.number,
        world.rank,
        world.size,
        world.device_name,
        world.backend,
        f"the checkpoint {attempt.chosen.path}" if attempt.chosen else describe_starting_weights(config),
    )
    for sentence in attempt.skipped if run.writes else []:
        log.warning("%s", sentence)
    return attempt


class RankLog(logging.FileHandler):
    """A full volume costs lines of the log and one sentence on the console, not a traceback for each of them."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        failure = sys.exc_info()[1]
        if failure is None or not is_storage_full(failure):
            super().handleError(record)
        elif not self._told:
            self._told = True
            print(
                f"{self.baseFilename}: {failure}; training goes on without this log",
                file=sys.stderr,
                flush=True,
            )


def _open(run: Run, resolved: dict[str, Any], hosts: list[Any], launcher: str, group: Any) -> Attempt:
    config, world, folder = run.config, run.world, run.folder
    folder.create()
    if world.backend == "nccl":  # torch writes its recorder's dump into a folder that is there, or nowhere
        folder.flight_recorder.mkdir(parents=True, exist_ok=True)
    number = 1 + max((line["attempt"] for line in folder.read_attempts()), default=0)
    chosen, skipped = _choose(config, CheckpointFolder(folder), group)
    before = {} if number == 1 else read_line(folder.config.read_bytes())
    record = before.get("resolved", {}).get(RESUMED_FROM)
    if problems := swapped_problems(before.get("resolved", {}), resolved, config) if chosen else []:
        raise ConfigError(problems)
    starts_over = chosen is None
    is_from_another = starts_over and bool(config.resume_from)
    if is_from_another:
        look = partial(find_problem_together, group=group)
        origin, broken = choose_origin(config, resolved, run.plan.steps, record, look)
        chosen, record, skipped = origin.chosen, origin.record, skipped + broken
    end_checking(group)
    rungs = resolved.get(RUNGS, [])
    resolved = resolved | ({RESUMED_FROM: record} if record else {})
    if number == 1 or starts_over:
        asked = config.model_copy(update=find_asked(rungs))
        described = describe_run(asked, resolved, *map(list, zip(*hosts, strict=True)))
        write_json(folder.config, {**described, "run_uid": before.get("run_uid", described["run_uid"])})
    elif rungs != before["resolved"].get(RUNGS, []):
        write_json(folder.config, before | {"resolved": resolved})
    attempt = Attempt(
        number,
        chosen,
        skipped,
        folder.has_all_traces(),
        is_moved=is_from_another or bool(rungs),
        nodes=[node for _, node in hosts],
    )
    nodes = sorted({node for _, node in hosts if node})
    facts = {"from_step": attempt.from_step, "world_size": world.size, "host": world.host, "nodes": nodes}
    facts |= {RESUMED_FROM: record["run"]} if record and is_from_another else {}
    facts |= {"rung": len(rungs)} if rungs else {}
    folder.append_attempt("started", number, launcher, **facts)
    folder.keep_reserve(world.size)
    return attempt


def _choose(config: Config, checkpoints: CheckpointFolder, group: Any) -> tuple[Chosen | None, list[str]]:
    checkpoints.remove_leftovers()
    if config.resume == "auto":
        return checkpoints.choose(lambda path: find_problem_together(path, group))
    checkpoints.set_all_aside()
    return None, []

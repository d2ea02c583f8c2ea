"""A run that does not fit into its accelerators goes on with less memory, in the same start of its pods.

    ranks end with 10  ─▶  next rung, into rungs.json  ─▶  ranks anew, from the newest checkpoint
    (where only a peer was lost, the launcher waits for the rung that another pod's writes)

A rung changes how the training is carried out and not the training: the effective batch stays, and a checkpoint of one
strategy goes on under another one (trainer/checkpoint/moved_state.py). The settings of the release stay what they were.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from trainer import failures
from trainer.failures import DataMissing
from trainer.launch.ledger import reached_step
from trainer.launch.preflight import Pods, check
from trainer.record.run_directory import RunDirectory, write_json
from trainer.record.rungs import VARIABLE, Rung, Settings, describe_rung, read_rungs
from trainer.settings.config import PREFIX, Config, ConfigError
from trainer.settings.strategy_table import STRATEGIES
from trainer.shapes.model_shapes import has_batch_norm

MOST_RUNGS = 5
HALVES_FIRST = 2
"""Halvings of the micro-batch before anything that costs time in every step; further ones come after that."""
WAIT_S = 90.0
"""For another pod's rung: its torch stops the other ranks first, for half a minute."""
POLL_S = 0.5

log = logging.getLogger("trainer")


def list_candidates(config: Config, halved: int) -> Iterator[Settings]:
    """What the next rung could change, in the order in which it is tried.

    Args:
        config: that of the rung it is now.
        halved: how often the micro-batch has been halved.
    """
    row, micro = STRATEGIES[config.strategy], config.micro_batch_size
    smaller: list[Settings] = [] if micro % 2 else [{"micro_batch_size": micro // 2}]
    if halved < HALVES_FIRST:
        yield from smaller
    if config.activation_checkpointing != "blocks":
        yield {"activation_checkpointing": "blocks"}
    if row.climbs_to:
        yield {"strategy": row.climbs_to}
    known = ("none", *row.offload)
    yield from ({"offload": offload} for offload in known[known.index(config.offload) + 1 :])
    if halved >= HALVES_FIRST:
        yield from smaller


class Ladder:
    """The rungs of one run, as the launcher of one pod climbs them.

    Args:
        config: of the release.
        env: of the ranks; gets the settings of the rung.
    """

    def __init__(
        self, config: Config, folder: RunDirectory, pods: Pods, env: MutableMapping[str, str]
    ) -> None:
        self._folder, self._pods, self._env = folder, pods, env
        self._asked = config
        self._rendezvous = env.get("PET_RDZV_ID", "")
        self._taken: list[Rung] = []

    def climb(
        self, launch: Callable[[], tuple[int, str]], record_end: Callable[[int], None]
    ) -> tuple[int, str]:
        """Launches the ranks, again on each further rung; (exit code, what happened) of the last time.

        Args:
            record_end: writes down how the ranks ended, if there is a further rung.
        """
        if not self._asked.oom_ladder or self._asked.mode != "train":
            return launch()
        self._stand_on(read_rungs(self._folder))  # of an earlier start
        while True:
            code, text = launch()
            try:
                further = self._find_further(code)
            except OSError as failure:
                log.warning("no further rung, rungs.json cannot be written: %s", failure)
                return code, text
            if isinstance(further, str):
                return code, ": ".join(filter(None, [text, further]))
            record_end(code)
            self._stand_on(further)
            log.warning("out of memory; rung %d: %s", len(further), describe_rung(further[-1]))

    def _find_further(self, code: int) -> list[Rung] | str:
        """All rungs up to the next one; or why there is none, "" where none is called for."""
        if code == failures.OUT_OF_MEMORY:
            known = read_rungs(self._folder)
            return known if len(known) > len(self._taken) else self._add()
        if code == failures.PEER_LOST and self._pods.nodes > 1 and len(self._taken) < MOST_RUNGS:
            return self._wait_for_others()
        return ""

    def _wait_for_others(self) -> list[Rung] | str:
        deadline = time.monotonic() + WAIT_S
        while len(known := read_rungs(self._folder)) <= len(self._taken):
            if time.monotonic() > deadline:
                return ""
            time.sleep(POLL_S)
        return known

    def _add(self) -> list[Rung] | str:
        if len(self._taken) >= MOST_RUNGS:
            return f"the ladder ends after {MOST_RUNGS} rungs [SL-ladder-ended]"
        config = self._config_with(self._taken, {})
        halved = sum("micro_batch_size" in rung["settings"] for rung in self._taken)
        passed_over: list[dict[str, Any]] = []
        for settings in list_candidates(config, halved):
            if reason := self._refusal(settings):
                passed_over.append({"settings": settings, "reason": reason})
                continue
            rung = {
                "rung": len(self._taken) + 1,
                "settings": settings,
                "instead_of": {name: getattr(config, name) for name in settings},
                "passed_over": passed_over,
                "step": reached_step(self._folder),
                "t": time.time(),
            }
            write_json(self._folder.rungs, [*self._taken, rung])
            return [*self._taken, rung]
        reasons = [f"{each['settings']}: {each['reason']}" for each in passed_over]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return f"no rung of the ladder is left{why} [SL-ladder-empty]"

    def _refusal(self, settings: Settings) -> str:
        """Why the run could not start with them, as before its first start; "" = it could."""
        if "micro_batch_size" in settings and has_batch_norm(self._asked):
            return (
                "its batch norm takes the statistics of a micro-batch: this would be another training "
                "[SL-ladder-batch-norm]"
            )
        env = self._env_with(self._taken, settings)
        try:
            check(Config.from_env(env), self._pods.world_size, env, replaces=True, makes_caches=False)
        except (ConfigError, DataMissing) as failure:
            return str(failure)
        return ""

    def _config_with(self, rungs: Sequence[Rung], settings: Settings) -> Config:
        return Config.from_env(self._env_with(rungs, settings))

    def _env_with(self, rungs: Sequence[Rung], settings: Settings) -> dict[str, str]:
        changed: Settings = {}
        for rung in rungs:
            changed |= rung["settings"]
        changed |= settings
        return {**self._env, **{f"{PREFIX}{name.upper()}": str(value) for name, value in changed.items()}}

    def _stand_on(self, rungs: list[Rung]) -> None:
        """From here on ranks are started so."""
        self._taken = rungs
        if not rungs:
            return
        self._env.update(self._env_with(rungs, {}))
        self._env[VARIABLE] = json.dumps(rungs)
        if self._rendezvous:  # torch's store remembers a rendezvous that has ended
            self._env["PET_RDZV_ID"] = f"{self._rendezvous}-rung{len(rungs)}"

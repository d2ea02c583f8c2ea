"""Handle missing memory: before the ranks start, when a rank was killed, and when accelerators run out of memory.

`check_memory` decides without torch whether a run may start with its predicted memory. `ContainerMemory` reads the
kernel's counters of the container (cgroup v2 or v1) after a rank was killed. The killed process itself leaves no
message; the count of kills, the limit and the peak are in files. `Ladder` lets a run that does not fit into its
accelerators continue with less memory, in the same start of its pods:

    ranks end with 10  ─▶  next rung, into rungs.json  ─▶  ranks anew, from the newest checkpoint
    (if only a peer was lost, the launcher waits for the rung that another pod's launcher writes)

A rung changes how the training is carried out and keeps its results: the effective batch stays, and a checkpoint of
one strategy resumes under another one (trainer/checkpoint/state.py). The settings of the release stay unchanged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import DataMissing, OutOfMemory
from stratlab_spec.memory.fit import (
    Choice,
    as_laid_out,
    depends_on_device,
)
from stratlab_spec.memory.prediction import GATE, forecast_memory
from stratlab_spec.memory.profiles import GIB
from stratlab_spec.models.model_specs import has_batch_norm
from stratlab_spec.plan import VARIABLE as PLAN
from stratlab_spec.plan import Plan, resolve_plan
from stratlab_spec.run_directory import (
    VARIABLE,
    RunDirectory,
    Rung,
    Settings,
    describe_rung,
    read_rungs,
    write_json,
)
from stratlab_spec.settings.config import PREFIX, Config, ConfigError
from stratlab_spec.strategies import STRATEGIES
from trainer.launch.ledger import reached_step
from trainer.launch.preflight import Pods, check

CGROUP = Path("/sys/fs/cgroup")
NO_LIMIT = 2**60
"""A larger limit means unlimited: v1 writes the largest possible number of pages."""
FROM_OUTSIDE = (
    "it was ended from outside, by a kill -9, a scheduler, or a watcher of memory (systemd-oomd, on a cluster the "
    "kubelet); the system's log names it"
)


class _Names(NamedTuple):
    """Files in the cgroup's folder."""

    killed: str
    limit: str
    peak: str


V2 = _Names("memory.events", "memory.max", "memory.peak")
V1 = _Names("memory/memory.oom_control", "memory/memory.limit_in_bytes", "memory/memory.max_usage_in_bytes")
log = logging.getLogger("trainer")


class ContainerMemory:
    """The memory of this pod's container, from the start of its ranks on.

    Args:
        folder: of the cgroup; a container sees its own there.
    """

    def __init__(self, folder: Path = CGROUP) -> None:
        self._folder = folder
        self._names = V1 if (folder / V1.killed).exists() else V2
        self._killed = self._read_killed()

    def explain_kill(self) -> str:
        """Return why a process may have received signal 9; "" if the system does not record it."""
        killed = self._read_killed()
        if killed is None or self._killed is None:
            return ""
        ended = killed - self._killed
        limit, peak = self._read_size(self._names.limit), self._read_size(self._names.peak)
        if limit is None or limit >= NO_LIMIT:
            # a pod without one, or no container at all: its peak may be a machine's
            if ended <= 0:
                seen = "the kernel's OOM killer has ended none of these processes"
                return f"{seen}; {FROM_OUTSIDE} [SL-kill-from-outside]"
            return (
                f"the kernel's OOM killer has ended {ended} of these processes: no limit is set, so the machine ran "
                "out of memory (`dmesg` names who took it); hold less: fewer processes, a smaller micro-batch "
                "[SL-oom-kill-machine]"
            )
        use = f"it used {peak / GIB:.2f} GiB at most" if peak is not None else "its highest use is not known"
        allowed = f"{limit / GIB:.2f} GiB are allowed, {use}"
        if ended <= 0:
            return f"not for this container's own limit: {allowed}; {FROM_OUTSIDE} [SL-kill-within-limit]"
        return (
            f"the kernel's OOM killer has ended {ended} of this container's processes: {allowed}; raise "
            "run.resources.limits.memory or run.sharedMemory.sizeLimit, or hold less: fewer processes per node, "
            "data_residence=stream, no offload [SL-oom-kill-limit]"
        )

    def _read_killed(self) -> int | None:
        try:
            text = (self._folder / self._names.killed).read_text()
            return int(dict(line.split() for line in text.splitlines())["oom_kill"])
        except (OSError, ValueError, KeyError):
            return None

    def _read_size(self, name: str) -> int | None:
        try:
            return int((self._folder / name).read_text())
        except (OSError, ValueError):  # "max": no limit
            return None


def check_memory(config: Config, pods: Pods, device: int | None, choice: Choice | None = None) -> None:
    """Print the run's predicted memory if it is known; warn or return without a prediction or a known device.

    Args:
        device: its bytes; None = unknown.
        choice: of the strategy nd, for such a device.

    Raises:
        OutOfMemory: the run cannot fit; names the breakdown by cause and settings to try. With `oom_fallback` the run
            may start.
    """
    if not config.memory_forecast or config.mode != "train" or device is None:
        return
    device_gib = device / GIB
    asked = config
    if choice and depends_on_device(config):
        asked = as_laid_out(config, choice.layout)
        if choice.left_out:
            log.warning("layout %s: %s", choice.layout.name, choice.describe_left_out(device_gib))
        if not choice.fits and not config.oom_fallback:
            raise OutOfMemory(
                f"TRAINER_LAYOUT=auto: no layout of {config.dimensions}D fits; "
                f"{choice.explain_refusal(config, device_gib)}, or run.config.memory_forecast=false to start in spite "
                "of it [SL-no-layout-fits]"
            )
    forecast = forecast_memory(asked, pods.world_size, pods.processes_per_node)
    if forecast is None:
        log.warning(
            "memory_forecast: no recorded steps and no count of these settings; the first steps show whether they fit "
            "%.1f GiB (docs/predict.md)",
            device_gib,
        )
        return
    sentence = f"foreseen: {forecast.describe()}; a device has {device_gib:.2f} GiB"
    if forecast.on_device_gib <= GATE * device_gib:
        log.info(sentence)
        return
    sentence += f"; try {forecast.advise(asked, device_gib)}"
    if forecast.least_gib > device_gib and not forecast.at_most and not config.oom_fallback:
        raise OutOfMemory(
            f"{sentence}, or run.config.memory_forecast=false to start in spite of it [SL-forecast-too-large]"
        )
    log.warning("more than %.0f %% of the device is %s", 100 * GATE, sentence)


MOST_RUNGS = 5
HALVES_FIRST = 2
"""Halvings of the micro-batch before anything that costs time in every step; further ones come after that."""
WAIT_S = 90.0
"""For another pod's rung: its torch stops the other ranks first, for half a minute."""
POLL_S = 0.5


def list_candidates(config: Config, halved: int) -> Iterator[Settings]:
    """Yield the changes that the next rung could make, in the order in which they are tried.

    Args:
        config: settings of the current rung.
        halved: how often the micro-batch has been halved.
    """
    row, micro = STRATEGIES[config.strategy], config.micro_batch_size
    smaller: list[Settings] = [] if micro % 2 else [{"micro_batch_size": micro // 2}]
    if halved < HALVES_FIRST:
        yield from smaller
    if config.activation_checkpointing != "blocks":
        yield {"activation_checkpointing": "blocks"}
    if row.falls_back_to:
        yield {"strategy": row.falls_back_to}
    known = ("none", *row.offload)
    yield from ({"offload": offload} for offload in known[known.index(config.offload) + 1 :])
    if halved >= HALVES_FIRST:
        yield from smaller


class Ladder:
    """The rungs of one run, climbed by the launcher of one pod.

    Args:
        config: of the release.
        env: of the ranks; gets the settings of the rung, and the plan that follows from them.
        plan: of the release; None if the run does not train.
    """

    def __init__(
        self,
        config: Config,
        folder: RunDirectory,
        pods: Pods,
        env: MutableMapping[str, str],
        plan: Plan | None,
    ) -> None:
        self._folder, self._pods, self._env = folder, pods, env
        self._asked, self._plan = config, plan
        self._rendezvous = env.get("PET_RDZV_ID", "")
        self._taken: list[Rung] = []

    def climb(
        self, launch: Callable[[], tuple[int, str]], record_end: Callable[[int], None]
    ) -> tuple[int, str]:
        """Launch the ranks, again on each further rung; return (exit code, text) of the last launch."""
        if self._plan:
            self._env[PLAN] = self._plan.as_variable()
        if not self._asked.oom_fallback or not self._plan:
            return launch()
        self._stand_on(read_rungs(self._folder))  # from an earlier start
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
        """Return all rungs up to the next one, or why no rung is left; "" if the exit code does not call for one."""
        if code == failures.OUT_OF_MEMORY:
            known = read_rungs(self._folder)
            return known if len(known) > len(self._taken) else self._add()
        if code != failures.PEER_LOST or self._pods.nodes == 1 or len(self._taken) >= MOST_RUNGS:
            return ""
        deadline = time.monotonic() + WAIT_S
        while len(known := read_rungs(self._folder)) <= len(self._taken):
            if time.monotonic() > deadline:
                return ""
            time.sleep(POLL_S)
        return known

    def _add(self) -> list[Rung] | str:
        if len(self._taken) >= MOST_RUNGS:
            return f"the ladder ends after {MOST_RUNGS} rungs [SL-ladder-ended]"
        config = Config.from_env(self._env_with(self._taken))
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
        """Return why the run could not start with these settings, as before its first start; "" = it could."""
        if "micro_batch_size" in settings and has_batch_norm(self._asked):
            return (
                "its batch norm takes the statistics of a micro-batch: this would be another training "
                "[SL-ladder-batch-norm]"
            )
        env = self._env_with([*self._taken, {"settings": settings}])
        try:
            check(Config.from_env(env), self._pods.world_size, env, replaces=True, makes_caches=False)
        except (ConfigError, DataMissing) as failure:
            return str(failure)
        return ""

    def _env_with(self, rungs: Sequence[Rung]) -> dict[str, str]:
        changed = {name: value for rung in rungs for name, value in rung["settings"].items()}
        return {**self._env, **{f"{PREFIX}{name.upper()}": str(value) for name, value in changed.items()}}

    def _stand_on(self, rungs: list[Rung]) -> None:
        """Start the ranks with these rungs in the following starts."""
        self._taken = rungs
        if not rungs:
            return
        self._env.update(self._env_with(rungs))
        self._env[VARIABLE] = json.dumps(rungs)
        assert self._plan
        config = Config.from_env(self._env)
        pods, (samples, device) = self._pods, (self._plan.train_samples, self._plan.device_bytes)
        plan = resolve_plan(config, pods.world_size, pods.processes_per_node, samples, device)
        self._env[PLAN] = plan.as_variable()
        if self._rendezvous:  # torch's store remembers a rendezvous that has ended
            self._env["PET_RDZV_ID"] = f"{self._rendezvous}-rung{len(rungs)}"

"""Runs a case: its memory is counted beforehand as for any run, then the real worker trains, with the stand-in."""

import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

from stratlab_spec.memory.prediction import read_pod_operations
from stratlab_spec.memory.profiles import CPU, FOLDER, ask_of_run, find_operations
from stratlab_spec.run_directory import RunDirectory, write_json
from tests.memory_faults.case import Case
from tests.memory_faults.plant import CAUSES
from tests.ranks import fork_ranks
from tests.trainer.runs import run_worker
from trainer.prepare.preparation import ensure_cache

LIMIT_S = 600.0


def run_case(case: Case, results: Path) -> dict[str, Any]:
    """{summary, forecast, training_memory of the fullest rank, seconds}, or {failure, seconds}."""
    began = time.perf_counter()
    config = case.config(results)
    if config.is_text:
        ensure_cache(config, lambda text: None)
    failure = _count(case, results) or _train(case, results)
    row = {"failure": failure} if failure else _read(RunDirectory(results, config.comparison, config.run))
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _count(case: Case, results: Path) -> str:
    """Writes the operations file of its settings, by a CPU's rules, unless one answers already."""
    config = case.config(results)
    found = find_operations(read_pod_operations(config), ask_of_run(config, case.ranks, case.ranks), CPU)
    if found and found.accumulates == (case.micro_batches > 1):
        return ""
    path = results / FOLDER / f"{len(list((results / FOLDER).glob('*.json'))):02d}.json"
    path.parent.mkdir(exist_ok=True)

    def count() -> None:
        from trainer.memory_estimation.memory_profile import build_operations

        asked = case.variables(results)
        write_json(path, build_operations(asked, case.ranks, case.ranks, say=lambda text: None, cuda=False))

    return _failures(fork_ranks(count, 1, timeout_s=LIMIT_S))


def _train(case: Case, results: Path) -> str:
    fault = case.fault
    env = case.variables(results) | {"STRATLAB_LAUNCHER": "test"}
    return _failures(fork_ranks(lambda: be_watched_worker(fault), case.ranks, env=env, timeout_s=LIMIT_S))


def be_watched_worker(fault: str) -> None:
    """The worker's own way, with the stand-in's counters in the place of the device's."""
    from tests.memory_faults.plant import plant
    from tests.memory_faults.stand_in import StorageCounters
    from trainer import worker

    build, counters = worker.build_engine, StorageCounters()

    def build_watched(*given: Any) -> Any:
        counters.begin()
        engine = build(*given)
        counters.take_up(engine)
        plant(fault, engine)
        return engine

    mock.patch.object(worker, "build_engine", build_watched).start()
    mock.patch.object(worker, "open_counters", lambda world: counters).start()
    raise SystemExit(run_worker())


def _failures(ranks: list[Any]) -> str:
    return "\n".join(rank.output[-3000:] for rank in ranks if rank.exit_code)


def _read(folder: RunDirectory) -> dict[str, Any]:
    resolved = json.loads(folder.config.read_text())["resolved"]
    summary = json.loads(folder.summary.read_text())
    facts = [json.loads(path.read_text()) for path in sorted(folder.rank_facts(0).parent.glob("rank*.json"))]
    fullest = max((each["training_memory"] for each in facts), key=lambda memory: memory["peak_gib"])
    told = {name: value for name, value in summary.items() if name.startswith(("forecast_", "peak_memory"))}
    return {"summary": told, "forecast": resolved.get("memory_forecast"), "training_memory": fullest}


def judge(case: Case, row: dict[str, Any]) -> str:
    """What is wrong about what the run, a row of `run_case`, says of itself; "" = nothing."""
    if "failure" in row:
        return "failed"
    if row["forecast"] is None:
        return "nothing was foreseen"
    if "forecast_memory_deviates" not in row["summary"]:
        return "not compared"
    named, wanted = row["summary"]["forecast_memory_deviates"], CAUSES[case.fault] if case.fault else None
    if named == wanted:
        return ""
    return f"names {named or 'nothing'} instead of {wanted}" if wanted else f"marked with {named}"

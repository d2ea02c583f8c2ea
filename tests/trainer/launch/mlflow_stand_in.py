"""A stand-in for the server that `mlflow_rest.Mlflow` talks to: stores in memory, one for each address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.launch.mlflow_rest import MlflowError


class Store:
    """What one server keeps. Calls fail while it is `away`; `calls` are the names of all, in order."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.away = False

    def run(self, run_id: str) -> dict[str, Any]:
        return self.runs[run_id]


class StandIn:
    """The methods of `Mlflow`, on the store of its address."""

    stores: dict[str, Store]

    def __init__(self, uri: str, env: Mapping[str, str]) -> None:
        self._store = self.stores[uri]

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "stores":
            self._store.calls.append(name)
            if self._store.away:
                raise MlflowError("503 not now")
        return object.__getattribute__(self, name)

    def open_experiment(self, name: str) -> str:
        return f"experiment {name}"

    def open_run(self, experiment: str, name: str, uid: str, params: Any, tags: Any) -> str:
        self._store.runs.setdefault(uid, {"points": [], "status": "RUNNING", "tags": {}, "params": params})
        return uid

    def log_batch(self, run_id: str, points: list[dict[str, Any]]) -> None:
        self._store.run(run_id)["points"] += points

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        self._store.run(run_id)["tags"] |= tags

    def reopen_run(self, run_id: str) -> None:
        self._store.run(run_id)["status"] = "RUNNING"

    def read_status(self, run_id: str) -> str:
        return str(self._store.run(run_id)["status"])

    def has_run(self, run_id: str) -> bool:
        return run_id in self._store.runs

    def read_latest(self, run_id: str) -> dict[str, int]:
        points = self._store.run(run_id)["points"]
        return {each["key"]: each["step"] for each in points}

    def end_run(self, run_id: str, status: str) -> None:
        self._store.run(run_id)["status"] = status

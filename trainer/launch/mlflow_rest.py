"""The calls of MLflow's REST API that the sender and a replay need, with the standard library."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from stratlab_spec.run_directory import NOTE
from trainer.distributed import explain_untrusted

API = "/api/2.0/mlflow/"
UID_TAG = "stratlab.run_uid"
PARAM_LENGTH = 500


class MlflowError(Exception):
    """The server rejected the request, or did not answer like MLflow."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Do not follow redirects: urllib would send the login to the new host, and turn a POST into a GET (301 to 303)."""

    def redirect_request(self, *redirect: Any) -> None:
        return None  # the answer becomes an HTTPError


class Mlflow:
    """One server. Credentials come from MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and _PASSWORD."""

    def __init__(self, uri: str, env: Mapping[str, str], timeout_s: float = 10.0) -> None:
        self._base = f"{uri}{API}"
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"}
        if token := env.get("MLFLOW_TRACKING_TOKEN"):
            self._headers["Authorization"] = f"Bearer {token}"
        elif user := env.get("MLFLOW_TRACKING_USERNAME"):
            pair = f"{user}:{env.get('MLFLOW_TRACKING_PASSWORD', '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._base + path, data, self._headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as failure:
            raise _error(failure) from failure
        except OSError as failure:
            if cure := explain_untrusted(failure):
                raise MlflowError(cure) from failure
            raise
        except (http.client.HTTPException, ValueError) as failure:
            raise _no_answer(repr(failure)) from failure
        if not isinstance(found, dict):
            raise _no_answer(str(found)[:200])
        return found

    def _ask(self, path: str, body: Mapping[str, Any] | None, *fields: str) -> str:
        """Return one text of the answer, below these names."""
        answer = self._call(path, body)
        found: Any = answer
        for name in fields:
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, str):
            raise _no_answer(f"{str(answer)[:200]} has no {'.'.join(fields)}")
        return found

    def open_experiment(self, name: str) -> str:
        """Return the experiment's id; create it if it is missing."""
        query = "experiments/get-by-name?" + urllib.parse.urlencode({"experiment_name": name})
        try:
            return self._ask(query, None, "experiment", "experiment_id")
        except MlflowError as failure:
            if failure.code != "RESOURCE_DOES_NOT_EXIST":
                raise
        try:
            return self._ask("experiments/create", {"name": name}, "experiment_id")
        except MlflowError as failure:
            if failure.code != "RESOURCE_ALREADY_EXISTS":  # another run of the comparison was faster
                raise
        return self._ask(query, None, "experiment", "experiment_id")

    def open_run(
        self, experiment: str, name: str, uid: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> str:
        """Return the id of the run tagged with `uid`, created once even if the answer to the first try was lost."""
        wanted = {"experiment_ids": [experiment], "filter": f"tags.`{UID_TAG}` = '{uid}'", "max_results": 1}
        found = self._call("runs/search", wanted).get("runs", [])
        if found:
            run_id = found[0]["info"]["run_id"]
        else:
            body = {
                "experiment_id": experiment,
                "run_name": name,
                "start_time": int(time.time() * 1000),
                "tags": _list_pairs({UID_TAG: uid, "mlflow.runName": name, **tags}),
            }
            run_id = self._ask("runs/create", body, "run", "info", "run_id")
        pairs = _list_pairs({k: str(v)[:PARAM_LENGTH] for k, v in params.items()})
        for start in range(0, len(pairs), 100):  # MLflow's limit of params per request
            self._call("runs/log-batch", {"run_id": run_id, "params": pairs[start : start + 100]})
        return run_id

    def log_batch(self, run_id: str, points: list[dict[str, Any]]) -> None:
        """Log at most 1000 points."""
        self._call("runs/log-batch", {"run_id": run_id, "metrics": points})

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Add the tags to the run; an existing tag gets its new value."""
        self._call("runs/log-batch", {"run_id": run_id, "tags": _list_pairs(tags)})

    def reopen_run(self, run_id: str) -> None:
        """Mark a known run as running, for a new attempt."""
        self._call("runs/update", {"run_id": run_id, "status": "RUNNING"})

    def read_status(self, run_id: str) -> str:
        """Return RUNNING, FINISHED, FAILED, ..."""
        query = "runs/get?" + urllib.parse.urlencode({"run_id": run_id})
        return self._ask(query, None, "run", "info", "status")

    def has_run(self, run_id: str) -> bool:
        """Return whether the store knows the run: a lost or new store does not."""
        try:
            self.read_status(run_id)
        except MlflowError as failure:
            if failure.code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    def read_latest(self, run_id: str) -> dict[str, int]:
        """Return the last step of each metric that the store has."""
        query = "runs/get?" + urllib.parse.urlencode({"run_id": run_id})
        data = self._call(query).get("run", {}).get("data", {})
        return {each["key"]: int(each.get("step", 0)) for each in data.get("metrics", [])}

    def read_note(self, run_id: str) -> str:
        """Return the run's description, or ""."""
        query = "runs/get?" + urllib.parse.urlencode({"run_id": run_id})
        tags = self._call(query).get("run", {}).get("data", {}).get("tags", [])
        return next((str(each["value"]) for each in tags if each["key"] == NOTE), "")

    def end_run(self, run_id: str, status: str) -> None:
        """End the run with `status` FINISHED, KILLED or FAILED."""
        self._call("runs/update", {"run_id": run_id, "status": status, "end_time": int(time.time() * 1000)})


def _list_pairs(named: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in named.items()]


def _error(failure: urllib.error.HTTPError) -> MlflowError:
    location = failure.headers.get("Location")
    if location and 300 <= failure.code < 400:
        return MlflowError(f"{failure.code} {_redirect(urllib.parse.urljoin(failure.url, location))}")
    text = failure.read(2000).decode(errors="replace")
    code = ""
    try:
        answer = json.loads(text)
        text, code = answer.get("message", text), answer.get("error_code", "")
    except (json.JSONDecodeError, AttributeError):
        if failure.code == 403 and "Host header" in text:
            text += " (add this host name to MLFLOW_SERVER_ALLOWED_HOSTS of the server)"
    return MlflowError(f"{failure.code} {text} [SL-mlflow-refused]", code)


def _no_answer(what: str) -> MlflowError:
    return MlflowError(f"not an answer of MLflow: {what} [SL-not-mlflow]")


def _redirect(target: str) -> str:
    """Return the address to set instead, without a login or the tokens of a login page."""
    parts = urllib.parse.urlsplit(target)
    server, api, _ = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".partition(API)
    where = "" if api else f"{server}, which is not an MLflow server: "
    wish = server if api else "the server's own address"
    return (
        f"a redirect is not followed, because it would receive the login: {where}set run.mlflow.trackingUri to {wish} "
        "[SL-mlflow-redirect]"
    )

"""MLflow's own page for comparing runs answers which is faster, leaner, cheaper and better, without any analysis."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest

from docs.pictures.devtools import Page, open_browser
from stratlab_spec.mlflow_run import name_metric
from stratlab_spec.run_directory import RunDirectory, write_json
from tests.stratlab.browser import ABSENT, CHROMIUM
from tests.tiers import refuse_in_fast
from trainer.launch.mlflow_sender import Sender

RESULTS = {
    "samples_per_s": 2113.8,
    "tokens_per_s": 270566.0,
    "step_time_ms_p50": 28.24,
    "step_time_ms_p95": 31.5,
    "mfu_pct": 41.3,
    "train_energy_wh": 812.0,
    "time_to_target_s": 96.5,
    "test_loss": 0.0375,
    "test_accuracy_pct": 98.89,
    "test_top5_accuracy_pct": 99.9,
    "test_perplexity": 7.25,
    "peak_memory_gib": 61.5,
    "state_memory_gib": 12.125,
    "wire_bytes_per_step": 1.6e6,
}
# where a table of the page scrolls by itself, it holds only what is seen
WINDOWS = """[...document.querySelectorAll('div')].filter(
  d => d.scrollHeight > d.clientHeight + 5 && d.clientHeight > 100)"""


def send_run(results: Path, uri: str, name: str, factor: float) -> dict[str, str]:
    folder = RunDirectory(results, "seen", name)
    folder.create()
    provenance = {"git_sha": None, "image": "", "hosts": ["pod"], "nodes": ["n"], "versions": {}}
    content = {"run_uid": f"{results.name}-{name}", "run": name, "comparison": f"seen-{results.name}"}
    content |= {"config": {"strategy": name}, "provenance": provenance}
    write_json(folder.config, content | {"resolved": {"world_size": 1, "axes": {}}})
    folder.append_attempt("started", 1, name)
    line = {"t": time.time(), "attempt": 1, "step": 20, "kind": "result"}
    numbers = {key: value * factor for key, value in RESULTS.items()}
    folder.metrics.write_text(json.dumps(line | numbers) + "\n")
    sender = Sender(folder, name, {"MLFLOW_TRACKING_URI": uri})
    sender.start()
    sender.finish(0)
    return json.loads(folder.mlflow.read_text())


def read_all(page: Page) -> str:
    """The words of the page, its tables scrolled through."""
    seen: list[str] = []
    for at in range(0, 3000, 200):
        page.run(f"{WINDOWS}.forEach(d => {{d.scrollTop = {at}}}); 0")
        time.sleep(0.1)
        seen.append(page.run("document.body.innerText"))
    return "\n".join(seen)


@pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason=ABSENT)
def test_the_results_of_two_runs_stand_side_by_side(mlflow_server: str, tmp_path: Path) -> None:
    refuse_in_fast("a browser")
    sent = [send_run(tmp_path, mlflow_server, name, factor) for name, factor in (("ddp", 1.0), ("fsdp", 0.5))]
    query = {
        "runs": json.dumps([entry["run_id"] for entry in sent]),
        "experiments": json.dumps([str(sent[0]["experiment_id"])]),
    }
    with open_browser(1400, 1300) as page:
        page.open(f"{mlflow_server}/#/compare-runs?{urlencode(query)}")
        page.wait("document.body.innerText.includes('samples_per_s')")
        text = read_all(page)
    assert [name for name in map(name_metric, RESULTS) if name not in text] == []
    for value in ("2113.8", "1056.9", "812", "406", "41.3"):
        assert value in text.replace(",", ""), value

"""report.html: what it says, and that nothing of it is loaded from elsewhere or run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.analyze import analyze_run
from stratlab.analysis.hta.bridge import HtaLimits
from tests.stratlab.simulated.small import TraceWriter, build_cpu_trace, build_gpu_trace, write_run

NOTE = "CPU trace: host operator time, not GPU utilisation"
HOSTILE = "<script>alert(1)</script>"


def build_html(run: Path) -> str:
    analyze_run(run, tracking_uri=None, hta_limits=HtaLimits(raw_bytes=0))
    return (run / "analysis" / "report.html").read_text()


def titles(html: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", html)


def test_sections_of_a_bare_run(tmp_path: Path) -> None:
    html = build_html(write_run(tmp_path / "run", {0: build_gpu_trace(0)}))
    assert titles(html) == [
        "Where each step went",
        "Means",
        "Timeline",
        "Phases",
        "Communication",
        "Quality of the traces",
        "Holistic Trace Analysis",
    ]
    assert "Run run, strategy ddp, 1 process on 1 node, synthetic (cuda), backend nccl, torch 2.13.0" in html
    assert "steps 10 to 12 of 600" in html
    assert NOTE not in html


def test_cpu_traces_are_never_shown_as_gpu_performance(tmp_path: Path) -> None:
    traces = {0: build_cpu_trace(0), 1: build_cpu_trace(1)}
    html = build_html(write_run(tmp_path / "run", traces, backend="gloo", device_type="cpu"))
    origin = html.split('class="origin">')[1].split("</p>")[0]
    assert origin.startswith(f"{NOTE}. ") and "backend gloo" in origin and "2 processes on 1 node" in origin
    assert html.count(NOTE) >= 2  # below the chart as well
    assert "operators" in html and "GPU time" not in html and "copy exposed" not in html


def test_run_of_its_own_is_drawn_when_it_is_there(tmp_path: Path) -> None:
    trace = build_gpu_trace(0)
    trace.memory(5100.5, 3 << 20, 8 << 20)
    trace.memory(5200.5, 5 << 20, 8 << 20)
    run = write_run(tmp_path / "run", {0: trace})
    lines = [{"kind": "train", "step": step, "loss": 2.0 / step} for step in (1, 2, 3)]
    lines += [{"kind": "train", "step": 3, "loss": 0.25}, {"kind": "eval", "step": 3, "validation_loss": 0.5}]
    lines += [{"kind": "event", "step": 1, "name": "profile", "text": "x"}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tr')
    evaluation = {
        "split": "test",
        "samples": 30,
        "loss": 0.1,
        "accuracy_pct": 90.0,
        "class_names": ["cat", HOSTILE],
        "confusion_matrix": [[17, 3], [0, 10]],
    }
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    (run / "summary.json").write_text("{broken")
    html = build_html(run)
    assert {"Loss", "Accuracy", "Memory"} < set(titles(html))
    assert "validation" in html and "train: 0.25 at 3" in html and "train: 0.6667 at 3" not in html
    assert "cat / cat: 17" in html and "rank 0 cuda:0" in html
    assert "summary.json" in html and "is not JSON" in html
    assert HOSTILE not in html


def build_hostile_trace() -> TraceWriter:
    trace = build_gpu_trace(0)
    trace.kernel(f"nccl{HOSTILE}", 5020, 5030, 5040)
    return trace


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_page_is_self_contained_and_escapes_names(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: build_hostile_trace()}, device_name=f"{HOSTILE} & co")
    html = build_html(run)
    assert HOSTILE not in html and "nccl&lt;script&gt;alert" in html and "&amp; co" in html
    page = Elements()
    page.feed(html)
    assert {tag for tag, _ in page.found} & {"script", "link", "img", "iframe", "a", "object"} == set()
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href")], tag
    policy = [a["content"] for tag, a in page.found if tag == "meta" and "http-equiv" in a]
    assert policy and str(policy[0]).startswith("default-src 'none'")


@pytest.mark.parametrize(("ranks", "label"), [(2, "rank 0, step 10"), (17, "rank 0, mean")])
def test_many_ranks_are_drawn_as_means(tmp_path: Path, ranks: int, label: str) -> None:
    traces = {rank: build_gpu_trace(rank) for rank in range(ranks)}
    html = build_html(write_run(tmp_path / "run", traces))
    assert f"{label}, compute: 0.65 ms (65.0 %)" in html


def test_missing_labels_and_no_communication_are_said(tmp_path: Path) -> None:
    trace = build_gpu_trace(0, without="backward")
    trace.events = [event for event in trace.events if not event["name"].startswith("nccl")]
    html = build_html(write_run(tmp_path / "run", {0: trace}))
    assert "rank 0 has no label of backward." in html
    assert "No communication was recorded." in html


def test_real_report(gloo_run: Path, gloo_report: dict[str, Any]) -> None:
    html = (gloo_run / "analysis" / "report.html").read_text()
    assert NOTE in html and "gloo:all_reduce" in html and "test processor" in html
    assert {"Timeline", "Memory"} < set(titles(html))
    assert len(html) < 500_000

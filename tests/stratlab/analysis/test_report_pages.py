"""report.html and summary.md: their numbers as they were (tests/data/pages.json), and nothing that breaks or loads."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stratlab.analysis.mlflow_upload import build_numbers
from stratlab.analysis.report_pages import OF_SETTINGS, build_html, build_markdown
from stratlab.analysis.run_facts import build_foreign_facts, read_facts
from stratlab.analysis.summaries import build_origin, choose_ranks
from stratlab.drawing import escape_markdown as escape
from stratlab_spec.step_time.step_forecast import compare_parts
from tests.stratlab.analysis.example_report import HOSTILE, blank, build_example, build_example_ranks
from tests.stratlab.pinned import check_pinned, outline

RULE = {
    "rule": "R3",
    "severity": "high",
    "title": "Slow.",
    "advice": "Compile. It fuses.",
    "at_most_ms": 45.678,
}
RULE |= {"settings": {"run.config.compile": "true"}, "evidence": {"host_wait_pct": 45.678}}
LAYOUT = {"name": "pp2.tp2+sp", "dimensions": 4, "missing": ["data"], "degenerate": True}
LAYOUT |= {"sequence_parallel": True, "reason": f"4D {HOSTILE}"}


def write_page(report, folder, **files):
    run = folder / "run"
    run.mkdir(exist_ok=True)
    for name, content in ({"config": {"run": "run"}} | files).items():
        (run / f"{name}.json").write_text(json.dumps(content))
    return build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")


def write_metrics(folder):
    """Losses, one of them made again, the power of two GPUs, and a line that is cut; returns a test of two classes."""
    (folder / "run").mkdir()
    lines = [{"kind": "train", "step": step, "loss": 2.0 / step} for step in (1, 2, 3)]
    lines += [{"kind": "train", "step": 3, "loss": 0.25}, {"kind": "eval", "step": 3, "validation_loss": 0.5}]
    for step, power in ((10, 540.0), (20, 610.0)):
        told = {
            f"rank{r}_{n}": v for r in (0, 1) for n, v in (("gpu_power_w", power), ("gpu_clock_mhz", 1.0))
        }
        lines.append({"t": 1.0, "attempt": 1, "step": step, "kind": "system", **told})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "run" / "metrics.jsonl").write_text(text + '{"kind": "tr')
    evaluation = {"split": "test", "samples": 30, "loss": 0.1, "accuracy_pct": 90.0}
    return evaluation | {"class_names": ["cat", HOSTILE], "confusion_matrix": [[17, 3], [0, 10]]}


def build_partly(ranks=130):
    report = build_example(ranks=ranks, slow={17: 1.2, 100: 0.8})
    rows = [{"action": "noted", "reason": "x", "file": f"rank{r}.json", "rank": r} for r in range(ranks)]
    report["quality"] = [*rows, {"action": "skipped", "reason": "is empty", "file": "f", "rank": 101}]
    return report


def build_silent():
    """A column of which no row knows anything, and analyses of HTA that do not apply to the traces."""
    report = build_example()
    for row in report["collectives"]:
        row["bytes"] = None
    lacks = {"status": "unsupported", "reason": "needs a stack", "seconds": 0.1, "tables": []}
    report["hta"] += [lacks | {"analysis": name} for name in ("critical_path", "call_stacks")]
    return report


def build_clocks(late_ms, compared):
    """Rank 1 begins so late, by a clock that is 4 ms ahead; a start beyond the step is no start of this step."""
    report = build_example()
    report["clocks"] |= {"offsets_ms": {"0": 0.0, "1": 4.0}, "residual_ms": 0.1 if compared else None}
    report["run"]["machines"] = 2
    drawn = build_example_ranks(report)
    drawn[1].drawn = replace(drawn[1].drawn, start_ns=late_ms * 1_000_000)
    return build_html(report, build_foreign_facts(Path(), "d", None, None, []), drawn)


PAGES = {
    "two GPUs": lambda at: write_page(build_example() | {"recommendations": [RULE, RULE | {"rule": "R7", "settings": {},
                                      "at_most_ms": None}]}, at),
    "a pipeline on a CPU": lambda at: write_page(build_example("cpu", ranks=16, pp=4), at),
    "130 ranks": lambda at: write_page(build_partly(), at),
    "what the run wrote": lambda at: write_page(build_example(), at, evaluation=write_metrics(at)),
    "what tells nothing": lambda at: write_page(build_silent(), at),
    "unknown on GPUs": lambda at: write_page(blank(build_example(ranks=20)) | {"durations": None}, at),
    "unknown on a CPU": lambda at: write_page(blank(build_example("cpu")) | {"durations": None}, at),
    "nothing": lambda at: write_page(build_example() | {name: [] for name in ("phases", "kernels", "copies", "idle",
                                     "parts", "hta", "collectives")} | {"merged": {}, "clocks": {}}, at),
    "a layout": lambda at: write_page(
        build_example() | {"run": build_example()["run"] | {"layout": LAYOUT, "axes": {"pp": 2, "tp": 2}}}, at,
        evaluation={"split": "test", "samples": 30, "labels": 700, "loss": 0.5, "perplexity": 1.6487}),
    "clocks": lambda at: build_clocks(10, compared=True),
    "clocks that are not compared": lambda at: build_clocks(10, compared=False),
    "a start beyond the step": lambda at: build_clocks(10_000, compared=True),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_numbers_that_it_had(name, tmp_path):
    html = PAGES[name](tmp_path)
    check_pinned(
        "pages.json", f"run: {name}", [*outline(html), *re.findall(r"style=\"left:([\d.]+)%", html)[:20]]
    )
    assert HOSTILE not in html and not re.search(r">[^<]*\bnan\b[^<]*<", html)
    assert len(html) < (1_000_000 if "130" in name or "pipeline" in name else 500_000)


def test_the_extremes_are_among_the_ranks_that_are_drawn():
    report = build_example(ranks=100)
    report["ranks"][28]["step_ms"], report["ranks"][29]["step_ms"] = 130.0, 70.0
    report["ranks"][30]["compute_pct"] = 99.0
    report["collectives"][31]["arrived_last"] = 25
    report["mean"]["slowest_rank"] = 32
    assert {28, 29, 30, 31, 32} <= set(choose_ranks(report))
    assert not {28, 29, 30, 31, 32} & set(choose_ranks(build_example(ranks=100)))
    assert choose_ranks(build_example(ranks=16)) == list(range(16))
    chosen = choose_ranks(build_partly())
    assert len(chosen) == 16 and {17, 100, 101, 129} <= set(chosen) and chosen == sorted(set(chosen))


class Elements(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_page_is_self_contained_and_escapes_names(tmp_path):
    report = build_example()
    report["device"], report["run"]["run"] = f"{HOSTILE} & co", HOSTILE
    report["collectives"][0]["name"] = report["collectives"][0]["axis"] = HOSTILE
    report["quality"] = [{"action": "noted", "reason": HOSTILE, "file": HOSTILE, "rank": 0}]
    report["hta"][0]["reason"] = report["clocks"]["reason"] = report["merged"]["reason"] = HOSTILE
    report["copies"][0]["kind"] = HOSTILE
    report["recommendations"] = [RULE | {"title": HOSTILE}] * 4
    html = write_page(report, tmp_path)
    assert HOSTILE not in html and "sm90_xmma_gemm_bf16&lt;script&gt;" in html and "&amp; co" in html
    assert html.partition('<ol class="advice">')[2].partition("</ol>")[0].count("<li>") == 3
    found = Elements(html).found
    assert {tag for tag, _ in found} & {"link", "img", "iframe", "object"} == set()
    assert [tag for tag, _ in found].count("script") == 1  # the page's own, which its policy names
    for tag, attributes in found:
        assert not [name for name in attributes if name.startswith("on") or name == "src"], tag
        address = str(attributes.get("href", "#"))
        assert address.startswith("#") or (tag == "a" and address == "merged_trace.json.gz"), tag


def test_the_forecast_stands_next_to_the_recorded_parts_on_page_summary_and_in_mlflow(tmp_path):
    report, plain = build_example(), build_numbers(build_example())
    foreseen = {"compute": 50.0, "comm": 5.0, "host": 1.0, "other_idle": 0.0}
    forecast = {"step_ms": 56.0, "card": "h200", "band_pct": [-30, 30], "parts_ms": foreseen}
    report["forecast"] = found = compare_parts(forecast, report["parts"])
    assert found["deviates"] == "other_idle", (
        "10 ms of other idle time and 4 of waiting for data, foreseen as 0"
    )
    parts = {f"forecast/{name}_ms": ms for name, ms in foreseen.items()}
    assert build_numbers(report) == plain | parts | {"forecast/step_error_pct": pytest.approx(-44.0)}
    html, text = write_page(report, tmp_path), build_markdown(report)
    for shown in (html, text):
        assert "56.0 ms" in shown and "h200" in shown and "-44.0 %" in shown
    assert "56.0 ms" not in build_markdown(build_example())


def test_the_example_has_the_keys_of_a_real_report(plain_report):
    """Else every test above would be about a report that nobody writes."""
    assert find_keys(build_example()) == find_keys(plain_report)


def find_keys(content, path=""):
    """Paths of all keys; of a list the first entry counts. Left out: what an empty list would hold, ranks as keys."""
    if isinstance(content, dict):
        named = {k: v for k, v in content.items() if not k.isdigit()}
        inside = [find_keys(value, f"{path}/{key}") for key, value in named.items()]
        return {f"{path}/{key}" for key in named} | set().union(*inside)
    if isinstance(content, list) and content and "/quality" not in path and "/recommendations" not in path:
        return find_keys(content[0], f"{path}[]")
    return set()


def test_nothing_from_outside_is_markup_in_the_summary():
    evil = f"a|b {HOSTILE}\n\n# heading [x](http://y) `c` *d* _e_ <b>"
    report = build_example()
    numbers = re.findall(r"\d[\d,.]*", build_markdown(report | {"recommendations": [RULE]}))
    check_pinned("pages.json", "run: summary.md", numbers)
    report["run"]["run"] = report["device"] = evil
    report["kernels"][0]["name"] = report["collectives"][0]["axis"] = evil
    report["quality"] = [{"action": "noted", "reason": evil, "file": evil, "rank": 0}]
    report["recommendations"] = [RULE | {"title": evil, "settings": {"x": evil}}]
    text = build_markdown(report)
    assert not re.findall(r"(?<!\\)<", text) and not re.findall(r"(?<!\\)\]", text)
    (title,) = [line for line in text.splitlines() if line.startswith("# ")]
    assert title.endswith(escape(evil)) and escape("a|b_*\n<") == "a\\|b\\_\\* \\<"


def build_foreign(source="gpu"):
    report = build_example(source, ranks=1)
    told = {"finished": None, "run": "d", "axes": {}}
    return report | {"run": {**dict.fromkeys(report["run"]), **told}, "backend": None, "device": None}


@pytest.mark.parametrize("source", ["gpu", "cpu"])
def test_no_page_of_foreign_traces_names_what_it_does_not_know(source, tmp_path):
    report = build_foreign(source) | {"recommendations": [RULE | {"settings": {}}]}
    facts = build_foreign_facts(tmp_path, "d", None, None, [])
    for text in (build_html(report, facts, []), build_markdown(report), build_origin(report)):
        assert "unknown" not in text and "None" not in text and OF_SETTINGS not in text
    assert OF_SETTINGS in build_html(report | {"recommendations": [RULE]}, facts, [])

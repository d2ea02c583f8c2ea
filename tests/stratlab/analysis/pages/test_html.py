"""report.html: what it says, and that nothing of it is loaded from elsewhere or run."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.pages.html import build_html
from stratlab.analysis.pages.markdown import build_markdown
from stratlab.analysis.pages.part_names import say_headline, split_row
from stratlab.analysis.pages.summaries import build_phase_parts, build_rank_parts, choose_ranks
from stratlab.analysis.reporting.run_facts import read_facts
from stratlab.run_directory.step_parts import COLOURS
from tests.stratlab.analysis.example_report import HOSTILE, blank, build_example, build_example_ranks

NOTE = "CPU trace: host operator time, not GPU utilisation"
SECTIONS = [
    "Where the time of a step goes",
    "Timeline",
    "Phases",
    "Ranks",
    "Communication against computation",
    "Kernels",
    "Copies",
    "Idle time",
    "Memory",
    "One trace of all ranks",
    "Holistic Trace Analysis",
]


def write_page(report: dict[str, Any], folder: Path) -> str:
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text('{"run": "run"}')
    return build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")


def sections(html: str) -> dict[str, str]:
    pieces = re.findall(r"<section id=\"s\d+\">\s*<h2>(.*?)</h2>(.*?)</section>", html, re.S)
    return dict(pieces)


def say_nothing(html: str) -> str:
    """The line at the end, of sections with nothing to show."""
    return html.partition('<p class="note">Nothing to show: ')[2].partition("</p>")[0]


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_sections_and_the_answer_first(tmp_path: Path) -> None:
    html = write_page(build_example(), tmp_path)
    assert list(sections(html)) == SECTIONS
    answer = sections(html)[SECTIONS[0]]
    assert (
        "A recorded step takes 100.0 ms: compute 60.0 ms (60 %), communication that nothing hides 12.0 ms (12 %; "
        "all-reduce over dp_replicate), other idle 11.0 ms (11 %), waiting for the host 9.00 ms (9 %), the rest 8 %."
    ) in answer
    assert (
        "Run ddp, strategy ddp, 2 processes on 1 node, starts from random weights, NVIDIA H200 (cuda), "
        "backend nccl, torch 2.13.0"
    ) in html
    assert "steps 10 to 12 of 600" in html and NOTE not in html


def test_what_the_gpus_did_over_the_run_is_drawn(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"run": "run"}')
    lines = []
    for step, power in ((10, 540.0), (20, 610.0)):
        told = {
            f"rank{r}_{n}": v for r in (0, 1) for n, v in (("gpu_power_w", power), ("gpu_clock_mhz", 1755.0))
        }
        lines.append(
            {"t": 1.0, "attempt": 1, "step": step, "kind": "system", "rank0_host_memory_gib": 1.0, **told}
        )
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = build_example()
    html = build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")
    section = sections(html)["GPUs over the run"]
    assert section.count("<svg") == 2 and "Power" in section and "Clock" in section
    assert "Temperature" not in section and "rank 1" in section  # what nobody told is not drawn


def test_headline_is_about_what_is_largest() -> None:
    report = build_example()
    report["parts"][0]["ms"], report["parts"][5]["ms"] = 9.0, 60.0  # compute and host change places
    assert "100.0 ms: waiting for the host 60.0 ms (60 %), communication" in say_headline(report)
    report["mean"]["step_ms"] = None
    assert say_headline(report) == "How long a step takes is not known."


def test_a_recommendation_shows_its_numbers_and_its_settings(tmp_path: Path) -> None:
    report = build_example()
    report["recommendations"] = [
        {
            "rule": "R3",
            "severity": "high",
            "title": f"The GPU waits {HOSTILE}.",
            "advice": "Compile.",
            "settings": {"run.config.compile": "true"},
            "evidence": {"host_wait_pct": 45.678, "kernels_per_step": 4000},
        }
    ]
    shown = sections(write_page(report, tmp_path))["Recommendations"]
    assert '<span class="badge bad">high</span> <strong>The GPU waits &lt;script&gt;' in shown
    assert "<code>run.config.compile=true</code>" in shown
    assert "Rule R3, because host_wait_pct 45.7, kernels_per_step 4,000." in shown
    report["recommendations"] = []
    page = write_page(report, tmp_path)
    assert "Recommendations" not in sections(page) and "none of the rules R1 to R12 fires" in say_nothing(
        page
    )


OF_A_CPU = [title for title in SECTIONS if title not in ("Kernels", "Copies")]


def test_a_cpu_page_says_whose_time_it_is_before_anything_else(tmp_path: Path) -> None:
    html = write_page(build_example("cpu"), tmp_path)
    assert "backend gloo" in html.split('class="origin">')[1].split("</p>")[0]
    banner = html.partition('<div class="banner"')[2]
    assert banner.partition("</div>")[0].count(f"<p>{NOTE}.</p>") == 1
    assert list(sections(html)) == OF_A_CPU
    body = html.split("<main>")[1]
    assert "compute" in body and "waiting for the host is Python, and waiting." in body
    assert "GPU time" not in body and "copy exposed" not in body
    assert "Kernels (CPU traces hold no GPU events); Copies (CPU traces hold no GPU events)" in say_nothing(
        html
    )


def test_parts_have_one_colour_in_all_charts(tmp_path: Path) -> None:
    """Every key and every bar, over all charts but those of memory and loss, whose lines are ranks."""
    html = write_page(build_example(pp=4, ranks=4), tmp_path)
    found: dict[str, set[str]] = {}
    for title, section in sections(html).items():
        if title == "Memory":
            continue
        for colour, name in re.findall(r'class="f(\d)"></rect><text[^>]*>([^<]+)</text>', section):
            found.setdefault(name, set()).add(colour)
        for colour, name in re.findall(r'class="f(\d)"><title>[^,<]*, ([a-z ]+):', section):
            found.setdefault(name, set()).add(colour)
    assert len(found) >= 8
    assert {name: len(colours) for name, colours in found.items()} == dict.fromkeys(found, 1)
    colours = [colour for name, (colour,) in found.items() if name != "hidden under compute"]
    assert len(set(colours)) == len(colours)
    assert {name: str(COLOURS[name]) for name in ("compute", "communication", "pipeline bubble")} == {
        name: next(iter(found[name])) for name in ("compute", "communication", "pipeline bubble")
    }


def test_bars_sum_to_the_step() -> None:
    report = build_example(pp=4, ranks=3, slow={1: 1.5})
    for rank, parts in build_rank_parts(report).items():
        assert sum(parts.values()) == pytest.approx(report["ranks"][rank]["step_ms"])  # type: ignore[arg-type]
    phases = build_phase_parts(report)
    assert list(phases) == ["data", "forward", "backward", "optimizer", "other"]
    mean = sum(row["step_ms"] for row in report["ranks"]) / 3
    assert sum(sum(parts.values()) for parts in phases.values()) == pytest.approx(mean)  # type: ignore[arg-type]
    assert split_row({"compute_ms": 1.0})["communication"] is None


def test_bubble_is_drawn_against_its_ideal(tmp_path: Path) -> None:
    ranks = sections(write_page(build_example(pp=4, ranks=4), tmp_path))["Ranks"]
    assert "measured, pipeline bubble: 20.0 % of the step" in ranks
    assert "ideal, pipeline bubble: 60.0 % of the step" in ranks
    assert "Bubble" not in sections(write_page(build_example(), tmp_path))["Ranks"]


def test_kernels_are_added_up_over_the_ranks(tmp_path: Path) -> None:
    shown = sections(write_page(build_example(), tmp_path))["Kernels"]
    assert "compute, 10.0 to 30.0: 200" in shown  # the distribution
    row = next(line for line in shown.split("<tr>") if "flash_fwd_kernel" in line)
    assert plain(row).split() == [
        *("flash_fwd_kernel", "compute", "180", "108.0", "22.8", "600.0", "540.0", "900.0", "1,200")
    ]


def test_collectives_are_split_into_hidden_transfer_and_waiting(tmp_path: Path) -> None:
    shown = sections(write_page(build_example(), tmp_path))["Communication against computation"]
    for part in ("hidden under compute: 18.0", "communication: 36.0", "waiting for the last rank: 9.0"):
        assert f"all-reduce over dp_replicate, {part} ms" in shown
    assert "rank 1 in 20 of 30" in shown and "2,454,648" in shown
    quiet = write_page(build_example(collectives=False), tmp_path)
    assert "Communication against computation (no communication was recorded)" in say_nothing(quiet)


def test_copies_and_idle_time(tmp_path: Path) -> None:
    found = sections(write_page(build_example(), tmp_path))
    assert "HtoD 60 120,000,000 6.0 20.0" in plain(found["Copies"])
    assert "Memset 60 - 6.0 -" in plain(found["Copies"])
    assert "idle, waiting for the host: 9.0 % of the step" in found["Idle time"]
    assert "7 2 27.0 3.0 30.0" in plain(found["Idle time"])


def test_merged_trace_and_clocks(tmp_path: Path) -> None:
    report = build_example()
    shown = plain(sections(write_page(report, tmp_path))["One trace of all ranks"])
    assert "merged_trace.json.gz beside this page holds 8,000 events of 2 ranks (0.1717 MiB)" in shown
    assert "No clock was moved: below 1 ms: nothing is corrected. 60 matched collectives" in shown
    report["merged"] |= {"file": None, "reason": "the disk is full"}
    assert "There is none: the disk is full." in write_page(report, tmp_path), "clocks have something to say"


def test_large_runs_are_drawn_in_part_and_say_which(tmp_path: Path) -> None:
    report = build_example(ranks=512, slow={17: 1.2, 300: 0.8})
    report["quality"] = [
        {"action": "noted", "reason": "x", "file": f"rank{r}_trace.json", "rank": r} for r in range(512)
    ]
    report["quality"].append({"action": "skipped", "reason": "is empty", "file": "f", "rank": 401})
    chosen = choose_ranks(report)
    assert len(chosen) == 16 and {17, 300, 401, 511} <= set(chosen) and chosen == sorted(set(chosen))
    html = write_page(report, tmp_path)
    assert len(html) < 3_000_000
    found = sections(html)
    for title in ("Timeline", "Ranks", "Memory"):
        assert "16 of 512 ranks are drawn, 496 are left out" in found[title]
        drawn = set(re.findall(r">(rank \d+)<", found[title]))
        assert drawn <= {f"rank {rank}" for rank in chosen}
    assert "120 of 1536 rows are shown, tables/step_metrics.csv has all." in found["Phases"]
    assert found["Phases"].count("<tr>") == 120 + 1 + 5 + 1
    assert "120 of 513 rows are shown, tables/quality.csv has all." in found["Quality of the traces"]
    assert found["Quality of the traces"].index("is empty") < found["Quality of the traces"].index("noted")


def test_the_extremes_are_among_the_ranks_that_are_drawn() -> None:
    report = build_example(ranks=100)
    report["ranks"][28]["step_ms"], report["ranks"][29]["step_ms"] = 130.0, 70.0
    report["ranks"][30]["compute_pct"] = 99.0
    report["collectives"][31]["arrived_last"] = 25
    report["mean"]["slowest_rank"] = 32
    assert {28, 29, 30, 31, 32} <= set(choose_ranks(report))
    assert not {28, 29, 30, 31, 32} & set(choose_ranks(build_example(ranks=100)))


def test_few_ranks_are_all_drawn() -> None:
    assert choose_ranks(build_example(ranks=16)) == list(range(16))
    assert len(choose_ranks(build_example(ranks=17))) == 16


@pytest.mark.parametrize("source", ["gpu", "cpu"])
@pytest.mark.parametrize("ranks", [1, 2, 20])
def test_unknown_numbers_never_break_the_page(source: str, ranks: int, tmp_path: Path) -> None:
    report = blank(build_example(source, ranks=ranks)) | {"durations": None}
    drawn = build_example(source, ranks=ranks)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"run": "run"}')
    html = build_html(report, read_facts(run), build_example_ranks(drawn), None)
    assert list(sections(html)) == (SECTIONS if source == "gpu" else OF_A_CPU)
    assert not re.search(r"\bnan\b|\bNone\b(?! of the rules)", plain(html))


def test_an_empty_report_of_one_rank(tmp_path: Path) -> None:
    report = build_example(ranks=1, collectives=False)
    for name in ("phases", "kernels", "copies", "idle", "parts", "hta"):
        report[name] = []
    report |= {"durations": None, "merged": {}, "clocks": {}}
    html = write_page(report, tmp_path)
    silent = say_nothing(html)
    assert "Kernels (no kernel was recorded); Copies (no copy was recorded)" in silent
    assert "Phases (no phase is labelled in the traces)" in silent
    assert "One trace of all ranks (there is none: it was not written)" in silent
    assert "One rank was recorded." in html


def test_tables_of_hta_are_shown_folded(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "analysis" / "tables" / "hta"
    folder.mkdir(parents=True)
    lines = [f"{i},1.23456789,{HOSTILE}{'x' * 200}" for i in range(40)]
    (folder / "temporal_breakdown.csv").write_text("rank,idle_time(us),\n" + "\n".join(lines) + "\n")
    (folder / "not_named_in_the_report.csv").write_text("a\n1\n")
    shown = sections(write_page(build_example(), tmp_path))["Holistic Trace Analysis"]
    assert "<details><summary>temporal_breakdown</summary>" in shown
    assert "The first 30 rows; temporal_breakdown.csv has all." in shown
    body = shown.split("<details>")[1]
    assert body.count("<tr>") == 31 and ">29<" in body and ">30<" not in body
    assert "1.235" in body and "…" in body and "not_named" not in shown


def test_run_of_its_own_is_drawn_when_it_is_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"run": "run"}')
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
    html = write_page(build_example(), tmp_path)
    assert {"Loss", "Accuracy", "Memory"} < set(sections(html))
    assert "validation" in html and "train: 0.25 at 3" in html and "train: 0.6667 at 3" not in html
    assert "cat / cat: 17" in html and "rank 0 cuda:0" in html
    assert HOSTILE not in html


def test_the_layout_of_a_language_model_and_its_test(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    layout = {
        "name": "pp2.tp2+sp",
        "dimensions": 4,
        "missing": ["data"],
        "degenerate": True,
        "sequence_parallel": True,
        "reason": f"4D on 4 processes {HOSTILE}",
    }
    axes = {"pp": 2, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 2, "ep": 1}
    config = {"run": "run", "resolved": {"layout": layout, "axes": axes}}
    (run / "config.json").write_text(json.dumps(config))
    (run / "evaluation.json").write_text(
        json.dumps({"split": "test", "samples": 30, "labels": 700, "loss": 0.5, "perplexity": 1.6487})
    )
    origin = read_facts(run).origin
    assert origin["layout"]["degenerate"] is True and origin["test_accuracy_pct"] is None
    report = build_example()
    assert "Layout" not in sections(write_page(report, tmp_path))
    report["run"] |= {"layout": origin["layout"], "axes": origin["axes"]}
    html = write_page(report, tmp_path)
    shown = sections(html)
    assert list(shown).index("Layout") == 1
    assert '<span class="badge bad">degenerate</span> ' in shown["Layout"]
    assert "lacks data parallelism, which its 4 dimensions promise" in shown["Layout"]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown["Layout"])
    assert cells == ["4", "2", "1", "1", "1", "2", "1", "yes"]
    assert "1.649" in shown["Test"] and "Accuracy" not in shown and HOSTILE not in html
    text = build_markdown(report)
    assert "Layout pp2.tp2\\+sp. 4D on 4 processes" in text and "Degenerate: lacks data parallelism" in text
    report["run"]["layout"] |= {"missing": [], "degenerate": False}
    assert "egenerate" not in sections(write_page(report, tmp_path))["Layout"] + build_markdown(report)


def test_missing_labels_are_said(tmp_path: Path) -> None:
    report = build_example(ranks=30)
    for rank in range(25):
        report["phases_present"][str(rank)].remove("backward")
    shown = sections(write_page(report, tmp_path))["Phases"]
    assert "rank 0 has no label of backward." in shown and ", and 5 more ranks" in shown


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_page_is_self_contained_and_escapes_names(tmp_path: Path) -> None:
    report = build_example()
    report["device"] = f"{HOSTILE} & co"
    report["run"]["run"] = HOSTILE
    report["collectives"][0]["name"] = report["collectives"][0]["axis"] = HOSTILE
    report["quality"] = [{"action": "noted", "reason": HOSTILE, "file": HOSTILE, "rank": 0}]
    report["hta"][0]["reason"] = report["clocks"]["reason"] = report["merged"]["reason"] = HOSTILE
    report["copies"][0]["kind"] = HOSTILE
    html = write_page(report, tmp_path)
    assert HOSTILE not in html and "sm90_xmma_gemm_bf16&lt;script&gt;" in html and "&amp; co" in html
    page = Elements()
    page.feed(html)
    assert {tag for tag, _ in page.found} & {"link", "img", "iframe", "object"} == set()
    assert [tag for tag, _ in page.found].count("script") == 1  # the page's own, which its policy names
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on") or name == "src"], tag
        address = str(attributes.get("href", "#"))
        assert address.startswith("#") or (tag == "a" and address == "merged_trace.json.gz"), tag
    policy = [a["content"] for tag, a in page.found if tag == "meta" and "http-equiv" in a]
    assert policy and str(policy[0]).startswith("default-src 'none'")


def test_what_was_recorded_beside_the_traces_is_linked(tmp_path: Path) -> None:
    report = build_example()
    assert "Recorded beside the traces" not in sections(write_page(report, tmp_path))
    files = {f"traces/memory_snapshots/rank{rank}.pickle": 2**20 for rank in range(20)}
    report["recordings"] = [
        {"recording": "memory snapshot", "what": "for pytorch.org/memory_viz", "files": files},
        {
            "recording": "flight recorder",
            "what": "of torch",
            "files": {f"hangs/flight_recorder/{HOSTILE}": 9},
        },
    ]
    html = write_page(report, tmp_path)
    shown = sections(html)["Recorded beside the traces"]
    assert "traces/memory_snapshots/rank0.pickle</a> (1.0 MiB)" in shown and "and 4 more" in shown
    page = Elements()
    page.feed(html)
    links = [str(a["href"]) for tag, a in page.found if str(a.get("href", "")).startswith("../")]
    assert len(links) == 17 and links[0] == "../traces/memory_snapshots/rank0.pickle"
    assert HOSTILE not in html and "<" not in links[-1]


def test_the_example_has_the_keys_of_a_real_report(
    gpu_report: dict[str, Any], gloo_report: dict[str, Any]
) -> None:
    """Else every test above would be about a report that nobody writes."""
    assert _keys(build_example()) == _keys(gpu_report)
    assert _keys(build_example("cpu")) == _keys(gloo_report)


def _keys(content: Any, path: str = "") -> set[str]:
    """Paths of all keys; of a list the first entry counts. Left out: what an empty list would hold, ranks as keys."""
    if isinstance(content, dict):
        named = {k: v for k, v in content.items() if not k.isdigit()}
        inside = [_keys(value, f"{path}/{key}") for key, value in named.items()]
        return {f"{path}/{key}" for key in named} | set().union(*inside)
    if isinstance(content, list) and content and "/quality" not in path and "/recommendations" not in path:
        return _keys(content[0], f"{path}[]")
    return set()


def test_real_report(gloo_run: Path, gloo_report: dict[str, Any]) -> None:
    html = (gloo_run / "analysis" / "report.html").read_text()
    assert NOTE in html and "gloo:all_reduce" in html and "test processor" in html
    assert {"Timeline", "Memory"} < set(sections(html))
    assert len(html) < 500_000


def test_real_report_of_a_gpu(gpu_run: Path, gpu_report: dict[str, Any]) -> None:
    html = (gpu_run / "analysis" / "report.html").read_text()
    assert "sm90_gemm&lt;float&gt;" in html and "<details><summary>temporal_breakdown</summary>" in html
    assert "merged_trace.json.gz" in html and NOTE not in html


def test_numbers_of_the_evidence_can_be_read(tmp_path: Path) -> None:
    report = build_example()
    evidence = {"a": 1000.4, "b": -12345.6, "c": 0.123456, "d": 7.0}
    rule = {"rule": "R1", "severity": "high", "title": "t", "advice": "a", "settings": {}}
    report["recommendations"] = [rule | {"evidence": evidence}]
    assert "because a 1,000, b -12,346, c 0.123, d 7." in plain(write_page(report, tmp_path))


def test_a_single_recorded_step_is_said_loudly(tmp_path: Path) -> None:
    report = build_example()
    assert 'class="loud"' not in write_page(report, tmp_path)
    report["steps"] = [row for row in report["steps"] if row["step"] == report["steps"][0]["step"]]
    head = write_page(report, tmp_path).partition("<nav")[0]
    assert '<strong class="loud">Only one step was recorded' in head


def test_the_parts_of_the_step_are_listed_by_size_and_sum_to_it(tmp_path: Path) -> None:
    table = sections(write_page(build_example(), tmp_path))[SECTIONS[0]].partition("</table>")[0]
    rows = [re.findall(r"<td[^>]*>([^<]*)", row) for row in table.split("<tr>")[2:]]
    assert [name for name, *_ in rows[:3]] == ["compute", "communication", "other idle"]
    times = [float(ms) for _, ms, _ in rows]
    assert times == sorted(times, reverse=True) and sum(times) == pytest.approx(100.0, abs=0.1)
    assert sum(float(share) for *_, share in rows) == pytest.approx(100.0, abs=0.2)


def test_analyses_of_hta_that_are_all_unsupported_are_one_line(tmp_path: Path) -> None:
    report = build_example()
    for row in report["hta"]:
        row |= {"status": "unsupported", "reason": "no GPU events", "tables": []}
    page = write_page(report, tmp_path)
    assert "Holistic Trace Analysis" not in sections(page)
    count = len(report["hta"])
    assert f"(unsupported by these traces, all {count} analyses: no GPU events)" in say_nothing(page)
    report["hta"][0] |= {"status": "failed", "reason": "it broke"}
    assert "it broke" in sections(write_page(report, tmp_path))["Holistic Trace Analysis"]

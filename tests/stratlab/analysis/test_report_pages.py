"""report.html: what it shows, and that nothing of it is loaded from elsewhere or run.

summary.md says what the page says, as Markdown that nothing from outside can break.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stratlab.analysis.report_pages import OF_SETTINGS, build_html, build_markdown
from stratlab.analysis.run_facts import build_foreign_facts, read_facts
from stratlab.analysis.summaries import (
    build_answer,
    build_origin,
    build_phase_parts,
    build_rank_parts,
    build_trust,
    choose_ranks,
)
from stratlab.drawing import escape_markdown as escape
from stratlab_spec.step_parts import COLOURS, split_step
from tests.stratlab.analysis.example_report import HOSTILE, blank, build_example, build_example_ranks
from tests.stratlab.example_run import build_run_dir

OPEN = ["Where the time of a recorded step goes", "What to try"]
FOLDED = ["Phases", "Ranks and steps", "Communication against computation", "Kernels", "Copies", "Idle time"]
FOLDED += ["Memory", "One trace of all ranks", "Holistic Trace Analysis", "Origin of the numbers"]
SECTIONS = OPEN + FOLDED
OF_A_CPU = [title for title in SECTIONS if title not in ("Kernels", "Copies", "Holistic Trace Analysis")]


def write_page(report: dict[str, Any], folder: Path, **files: Any) -> str:
    run = folder / "run"
    run.mkdir(exist_ok=True)
    for name, content in ({"config": {"run": "run"}} | files).items():
        (run / f"{name}.json").write_text(json.dumps(content))
    return build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")


def find_sections(html: str) -> dict[str, str]:
    found = re.findall(r'<section id="s\d+">\s*(?:<h2>.*?</h2>)?(.*?)</section>', html, re.S)
    return dict(zip(re.findall(r"<h2>(.*?)</h2>", html), found, strict=True))


def find_open(html: str) -> str:
    """Without what is folded, and without head and script."""
    body = html.partition("<body>")[2].partition("<script>")[0]
    while "<details" in body:
        body = re.sub(r"<details[^>]*>(?:(?!<details).)*?</details>", "", body, flags=re.S)
    return body


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_sections_and_the_answer_first(tmp_path: Path) -> None:
    html = write_page(build_example(), tmp_path)
    found = find_sections(html)
    assert list(found) == SECTIONS
    answer = plain(found[SECTIONS[0]])
    parts = (
        "100.0 ms",
        "compute 60.0 ms (60 %)",
        "12.0 ms (12 %",
        "other idle 11.0 ms (11 %)",
        "9.00 ms (9 %)",
    )
    places = [answer.index(part) for part in parts]
    assert places == sorted(places)
    keys = re.findall(r"[a-z ]+ ([\d.]+) ms, ([\d.]+) %<", found[SECTIONS[0]].partition('class="narrow"')[0])
    assert len(keys) == 7
    assert sum(float(ms) for ms, _ in keys) == pytest.approx(100.0, abs=0.1)
    assert sum(float(share) for _, share in keys) == pytest.approx(100.0, abs=0.2)
    cells = {
        "Kernels": "flash_fwd_kernel compute 180 108.0 22.8 600.0 540.0 900.0 1,200",  # over both ranks
        "Copies": "HtoD 60 120,000,000 6.0 20.0 Memset 60 - 6.0 -",
        "Idle time": "7 2 27.0 3.0 30.0",
        "One trace of all ranks": "merged_trace.json.gz",
    }
    for title, text in cells.items():
        assert text in plain(found[title]), title
    assert re.findall(r">(step \d+)</text>", found["Ranks and steps"])[:3] == [
        "step 10",
        "step 11",
        "step 12",
    ]
    communication = found["Communication against computation"]
    for part in ("hidden under compute: 18.0", "communication: 36.0", "waiting for the last rank: 9.0"):
        assert f"all-reduce over dp_replicate, {part} ms" in communication
    assert "rank 1 in 20 of 30" in communication and "2,454,648" in communication


def test_what_the_run_wrote_is_drawn_when_it_is_there(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    lines: list[dict[str, Any]] = [{"kind": "train", "step": step, "loss": 2.0 / step} for step in (1, 2, 3)]
    lines += [{"kind": "train", "step": 3, "loss": 0.25}, {"kind": "eval", "step": 3, "validation_loss": 0.5}]
    for step, power in ((10, 540.0), (20, 610.0)):
        told = {
            f"rank{r}_{n}": v for r in (0, 1) for n, v in (("gpu_power_w", power), ("gpu_clock_mhz", 1.0))
        }
        lines.append({"t": 1.0, "attempt": 1, "step": step, "kind": "system", **told})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tr')
    evaluation = {"split": "test", "samples": 30, "loss": 0.1, "accuracy_pct": 90.0}
    evaluation |= {"class_names": ["cat", HOSTILE], "confusion_matrix": [[17, 3], [0, 10]]}
    html = write_page(build_example(), tmp_path, evaluation=evaluation)
    found = find_sections(html)
    assert {"Loss", "Accuracy", "Memory", "GPUs over the run"} < set(found)
    assert "train: 0.25 at 3" in html and "train: 0.6667 at 3" not in html, "the later attempt counts"
    assert "cat / cat: 17" in html and HOSTILE not in html
    assert found["GPUs over the run"].count("<svg") == 2, "what nobody told is not drawn"


def test_the_page_as_it_opens_fits_a_reader(tmp_path: Path) -> None:
    """All of its folds closed; with every kind of caveat and of advice at once."""
    report = build_example("cpu", ranks=16, pp=4)
    report["steps"] = [row for row in report["steps"] if row["step"] == 10]
    report["recommendations"] = [ADVICE | {"rule": f"R{i}", "at_most_ms": 9.0} for i in range(1, 13)]
    html = write_page(report, tmp_path)
    shown = find_open(html)
    assert len(plain(shown).split()) < 1000 and "<table" not in shown and shown.count("<li>") == 3
    banner = plain(shown.partition('<div class="banner"')[2].partition("</div>")[0])
    assert 1 <= banner.count(". ") <= 2
    assert html.count("<details open") == 0 and shown.count("CPU</span>") == 1
    assert len(html) < 1_000_000 and len(write_page(build_example(), tmp_path)) < 400_000
    assert html.count('class="lane"') == 16


def test_a_line_of_advice_says_what_it_can_win(tmp_path: Path) -> None:
    report = build_example()
    rule = {"rule": "R3", "severity": "high", "title": f"t {HOSTILE}.", "advice": "Compile. It fuses."}
    evidence = {"host_wait_pct": 45.678}
    compiles = rule | {"settings": {"run.config.compile": "true"}, "at_most_ms": 45.678, "evidence": evidence}
    unknown = compiles | {"rule": "R7", "settings": {}, "at_most_ms": None}
    report["recommendations"] = [compiles, unknown, unknown | {"rule": "R12"}]
    shown = find_sections(write_page(report, tmp_path))["What to try"]
    first, second = re.findall(r"<li>(.*?)</li>", shown)
    assert "45.7 ms (46 %)" in first and "<code>run.config.compile=true</code>" in first
    assert not re.search(r"\d ms", second) and "Compile." in second and "fuses" not in second
    folded = shown.partition("<details")[2]
    assert '<span class="badge bad">high</span>' in folded and "&lt;script&gt;" in shown
    assert "host_wait_pct 45.68" in folded and folded.count("fuses") == 3
    assert "<li>" not in find_sections(write_page(build_example(), tmp_path))["What to try"]


def test_what_tells_nothing_takes_no_room(tmp_path: Path) -> None:
    """A column of which no row knows anything, and an analysis of HTA that does not apply to the traces."""
    report = build_example()
    for row in report["collectives"]:
        row["bytes"] = None
    lacks = {"status": "unsupported", "reason": "needs a stack", "seconds": 0.1, "tables": []}
    report["hta"] += [lacks | {"analysis": name} for name in ("critical_path", "call_stacks")]
    found = find_sections(write_page(report, tmp_path))
    heads = plain(found["Communication against computation"].partition("<thead>")[2].partition("</thead>")[0])
    assert "count" in heads and "bytes" not in heads
    table, _, notes = found["Holistic Trace Analysis"].partition("</table>")
    assert "temporal_breakdown" in table and "critical_path" not in table
    assert notes.count("needs a stack") == 1 and "critical_path, call_stacks" in notes


def test_how_far_the_numbers_can_be_trusted() -> None:
    report = build_example()
    for row in report["steps"]:
        row["compute_ms"] += 2.0 * (row["step"] - 10)
    told = build_trust(report)
    assert "3 recorded steps on 2 ranks" in told[0] and "100.0 ms to 104.0 ms" in told[0]
    assert "95.0 ms" in told[1] and "1.05" in told[1] and "Rank 0" in told[2]
    report["mean"]["slowest_rank"] = report["run"]["step_time_ms_p50"] = None
    report["quality"] = [{"action": action} for action in ("noted", "skipped", "noted")]
    told = build_trust(report)
    assert len(told) == 2 and "3 findings" in told[1] and "1 left out" in told[1]


def test_one_step_is_drawn_on_one_clock_or_each_rank_on_its_own(tmp_path: Path) -> None:
    """Rank 1 begins 10 ms later, by a clock that is 4 ms ahead; a start beyond the step is no start of this step."""
    (run := tmp_path / "run").mkdir()
    (run / "config.json").write_text('{"run": "run"}')
    for late_ms, compared, left in ((10, True, "5.66"), (10, False, "0"), (10_000, True, "0")):
        report = build_example()
        report["clocks"] |= {"offsets_ms": {"0": 0.0, "1": 4.0}, "residual_ms": 0.1 if compared else None}
        report["run"]["machines"] = 2
        drawn = build_example_ranks(report)
        drawn[1].drawn = replace(drawn[1].drawn, start_ns=late_ms * 1_000_000)
        html = find_sections(build_html(report, read_facts(run), drawn))[SECTIONS[0]]
        starts = re.findall(r"style=\"left:([\d.]{1,4})[\d]*%;width:[\d.]+%\"><path", html)
        assert starts == ["0", left], (late_ms, compared)
        assert html.count("all-reduce over dp_replicate, 25.0 ms, 81,920 bytes") == 2


def test_a_cpu_page_says_whose_time_it_is_before_anything_else(tmp_path: Path) -> None:
    report = build_example("cpu")
    html = write_page(report, tmp_path)
    banner = html.partition('<div class="banner"')[2].partition("</div>")[0]
    assert report["note"] in banner and 'class="banner"' not in write_page(build_example(), tmp_path)
    assert list(find_sections(html)) == OF_A_CPU and "copies" not in find_sections(html)[SECTIONS[0]]


def test_parts_have_one_colour_in_all_charts(tmp_path: Path) -> None:
    """Every key and every bar, over all charts but those of memory, whose lines are ranks."""
    html = write_page(build_example(pp=4, ranks=4), tmp_path)
    found: dict[str, set[str]] = {}
    for title, section in find_sections(html).items():
        if title == "Memory":
            continue
        for colour, name in re.findall(r'class="f(\d)"></rect><text[^>]*>([^<\d]+)', section):
            found.setdefault(name.strip(), set()).add(colour)
        for colour, name in re.findall(r'class="f(\d)"><title>[^,<]*, ([a-z ]+):', section):
            found.setdefault(name, set()).add(colour)
    assert len(found) >= 8
    assert {name: len(colours) for name, colours in found.items()} == dict.fromkeys(found, 1)
    colours = [colour for name, (colour,) in found.items() if name != "hidden under compute"]
    assert len(set(colours)) == len(colours)
    for name in ("compute", "communication", "pipeline bubble"):
        assert found[name] == {str(COLOURS[name])}


def test_bars_sum_to_the_step() -> None:
    report = build_example(pp=4, ranks=3, slow={1: 1.5})
    for rank, parts in build_rank_parts(report).items():
        assert sum(parts.values()) == pytest.approx(report["ranks"][rank]["step_ms"])  # type: ignore[arg-type]
    phases = build_phase_parts(report)
    assert list(phases) == ["data", "forward", "backward", "optimizer", "other"]
    mean = sum(row["step_ms"] for row in report["ranks"]) / 3
    assert sum(sum(parts.values()) for parts in phases.values()) == pytest.approx(mean)  # type: ignore[arg-type]
    assert split_step({"compute_ms": 1.0})["communication"] is None


def test_large_runs_are_drawn_in_part_and_say_which(tmp_path: Path) -> None:
    report = build_example(ranks=130, slow={17: 1.2, 100: 0.8})
    report["quality"] = [
        {"action": "noted", "reason": "x", "file": f"rank{r}_trace.json", "rank": r} for r in range(130)
    ]
    report["quality"].append({"action": "skipped", "reason": "is empty", "file": "f", "rank": 101})
    chosen = choose_ranks(report)
    assert len(chosen) == 16 and {17, 100, 101, 129} <= set(chosen) and chosen == sorted(set(chosen))
    found = find_sections(write_page(report, tmp_path))
    assert "16 of 130 ranks" in found[SECTIONS[0]] and "114" in found[SECTIONS[0]]
    for title in (SECTIONS[0], "Ranks and steps", "Memory"):
        drawn = set(re.findall(r">(rank \d+)<", found[title]))
        assert drawn <= {f"rank {rank}" for rank in chosen}
    assert "120 of 390 rows" in found["Phases"] and "tables/step_metrics.csv" in found["Phases"]
    assert found["Phases"].count("<tr>") == 120 + 1 + 5 + 1
    quality = found["Quality of the traces"]
    assert "120 of 131 rows" in quality and quality.index("is empty") < quality.index("noted")


def test_the_extremes_are_among_the_ranks_that_are_drawn() -> None:
    report = build_example(ranks=100)
    report["ranks"][28]["step_ms"], report["ranks"][29]["step_ms"] = 130.0, 70.0
    report["ranks"][30]["compute_pct"] = 99.0
    report["collectives"][31]["arrived_last"] = 25
    report["mean"]["slowest_rank"] = 32
    assert {28, 29, 30, 31, 32} <= set(choose_ranks(report))
    assert not {28, 29, 30, 31, 32} & set(choose_ranks(build_example(ranks=100)))
    assert choose_ranks(build_example(ranks=16)) == list(range(16))
    assert len(choose_ranks(build_example(ranks=17))) == 16


@pytest.mark.parametrize(("source", "ranks"), [("gpu", 1), ("gpu", 20), ("cpu", 2)])
def test_unknown_numbers_never_break_the_page(source: str, ranks: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"run": "run"}')
    drawn, facts = build_example_ranks(build_example(source, ranks=ranks)), read_facts(tmp_path)
    report = blank(build_example(source, ranks=ranks)) | {"durations": None}
    html = build_html(report, facts, drawn, None)
    assert list(find_sections(html)) == (SECTIONS if source == "gpu" else OF_A_CPU)
    assert not re.search(r"\bnan\b|\bNone\b(?! of the rules)", plain(html))
    empty = {name: [] for name in ("phases", "kernels", "copies", "idle", "parts", "hta", "collectives")}
    html = build_html(report | empty | {"merged": {}, "clocks": {}}, facts, drawn, None)
    assert not {"Kernels", "Copies", "Phases", "Holistic Trace Analysis"} & set(find_sections(html))


def test_the_layout_of_a_language_model_and_its_test(tmp_path: Path) -> None:
    layout = {"name": "pp2.tp2+sp", "dimensions": 4, "missing": ["data"], "degenerate": True}
    layout |= {"sequence_parallel": True, "reason": f"4D {HOSTILE}"}
    config = {"run": "run", "resolved": {"layout": layout, "axes": {"pp": 2, "tp": 2}}}
    evaluation = {"split": "test", "samples": 30, "labels": 700, "loss": 0.5, "perplexity": 1.6487}
    report = build_example()
    assert "Layout" not in find_sections(write_page(report, tmp_path, config=config))
    origin = read_facts(tmp_path / "run").origin
    report["run"] |= {"layout": origin["layout"], "axes": origin["axes"]}
    shown = find_sections(write_page(report, tmp_path, config=config, evaluation=evaluation))
    assert list(shown).index("Layout") == 2 and "degenerate" in shown["Layout"]
    assert "1.649" in shown["Test"] and HOSTILE not in shown["Layout"]
    assert "pp2.tp2\\+sp" in build_markdown(report) and "egenerate" in build_markdown(report)


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

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
    found = Elements(html).found
    assert {tag for tag, _ in found} & {"link", "img", "iframe", "object"} == set()
    assert [tag for tag, _ in found].count("script") == 1  # the page's own, which its policy names
    for tag, attributes in found:
        assert not [name for name in attributes if name.startswith("on") or name == "src"], tag
        address = str(attributes.get("href", "#"))
        assert address.startswith("#") or (tag == "a" and address == "merged_trace.json.gz"), tag


def test_the_example_has_the_keys_of_a_real_report(plain_report: dict[str, Any]) -> None:
    """Else every test above would be about a report that nobody writes."""
    assert find_keys(build_example()) == find_keys(plain_report)


def find_keys(content: Any, path: str = "") -> set[str]:
    """Paths of all keys; of a list the first entry counts. Left out: what an empty list would hold, ranks as keys."""
    if isinstance(content, dict):
        named = {k: v for k, v in content.items() if not k.isdigit()}
        inside = [find_keys(value, f"{path}/{key}") for key, value in named.items()]
        return {f"{path}/{key}" for key in named} | set().union(*inside)
    if isinstance(content, list) and content and "/quality" not in path and "/recommendations" not in path:
        return find_keys(content[0], f"{path}[]")
    return set()


RULE = {"rule": "R3", "severity": "high", "title": "Slow.", "advice": "Compile."}
RULE |= {"settings": {"run.config.compile": "true"}, "evidence": {"host_wait_pct": 45.0}, "at_most_ms": 45.0}


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table: [table][line][column]; a line is split where no backslash stands before the bar."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_the_answer_the_advice_and_the_tables() -> None:
    text = build_markdown(build_example() | {"recommendations": [RULE]})
    for part in ("100.0 ms", "60.0 ms (60 %)", "R3", "run.config.compile=true", "host\\_wait\\_pct 45.0"):
        assert part in text
    titles = [
        "Where the time of a step goes",
        "Communication",
        "Kernels",
        "Copies",
        "Quality of the traces",
        "Files",
    ]
    assert re.findall(r"^## (.*)$", text, re.M) == ["Recommendations", *titles]
    phases, ranks, communication, kernels, copies = tables(text)
    assert phases[1][:2] == ["---", "---:"] and phases[3][:3] == ["forward", "18.0", "3.6"]
    assert [line[0] for line in ranks[2:]] == ["0", "1", "all"]
    assert communication[2][0] == "all-reduce over dp\\_replicate"
    assert communication[2][-1] == "rank 1 in 20 of 30"
    assert kernels[2][1] == "comm" and copies[2][-1] == "20.0" and copies[3][-1] == "-"
    assert "merged\\_trace.json.gz" in text


def test_nothing_from_outside_is_markup() -> None:
    evil = f"a|b {HOSTILE}\n\n# heading [x](http://y) `c` *d* _e_ <b>"
    report = build_example()
    report["run"]["run"] = report["device"] = evil
    report["kernels"][0]["name"] = report["collectives"][0]["axis"] = evil
    report["quality"] = [{"action": "noted", "reason": evil, "file": evil, "rank": 0}]
    report["recommendations"] = [RULE | {"title": evil, "settings": {"x": evil}}]
    text = build_markdown(report)
    assert not re.findall(r"(?<!\\)<", text) and not re.findall(r"(?<!\\)\]", text)
    (title,) = [line for line in text.splitlines() if line.startswith("# ")]
    assert title.endswith(escape(evil))
    for table in tables(text):
        assert len({len(line) for line in table}) == 1
    assert escape("a|b_*\n<") == "a\\|b\\_\\* \\<"


ADVICE = {"rule": "R3", "severity": "high", "title": "t", "advice": "a", "settings": {}, "evidence": {}}
ADVICE |= {"at_most_ms": None}


def build_foreign(source: str = "gpu", **known: Any) -> dict[str, Any]:
    """Of traces that tell nothing of their run, but what is `known`."""
    report = build_example(source, ranks=1)
    told = {"finished": None, "run": "d", "axes": {}, **known}
    report["run"] = {**dict.fromkeys(report["run"]), **told}
    return {**report, "backend": None, "device": None}


def test_the_terminal_counts_as_one_does_and_says_what_is_not_in_it() -> None:
    report = build_foreign()
    report["mean"] |= {"steps": 1, "ranks": 1}
    report["quality"] = []
    assert "1 step on 1 rank " in build_answer(report)[0] and len(build_answer(report)) == 2
    row = {"action": "skipped", "reason": "empty file", "file": "worker2.json", "rank": 2}
    report["quality"] = [row | {"action": "noted"}, row, row | {"file": None}, row | {"rank": None}]
    report["mean"] |= {"steps": 4, "ranks": 2}
    answer = build_answer({**report, "backend": "nccl", "device": "A100"})
    assert all(word in answer[0] for word in ("4 steps on 2 ranks", "nccl", "A100"))
    told = [("worker2.json" in line, "rank 2" in line, "empty file" in line) for line in answer[2:]]
    assert told == [(True, True, True), (False, True, True), (True, False, True)]
    assert "2 more" in build_answer({**report, "quality": [row] * 7})[-1]


@pytest.mark.parametrize("source", ("gpu", "cpu"))
def test_no_page_of_foreign_traces_names_what_it_does_not_know(source: str, tmp_path: Any) -> None:
    report = build_foreign(source) | {"recommendations": [ADVICE]}
    facts = build_foreign_facts(tmp_path, "d", None, None, [])
    for text in (build_html(report, facts, []), build_markdown(report), build_origin(report)):
        assert "unknown" not in text and "None" not in text and OF_SETTINGS not in text
    report["recommendations"] = [ADVICE | {"settings": {"run.config.compile": "true"}}]
    assert OF_SETTINGS in build_html(report, facts, [])


def draw(run: Path) -> str:
    report = build_example()
    return build_html(report, read_facts(run), build_example_ranks(report), run / "analysis")


def test_what_lies_in_the_run_directory_is_linked(tmp_path: Path) -> None:
    head = draw(build_run_dir(tmp_path / "demo", "ddp", "ddp")).partition("<nav")[0]
    for place in ("merged_trace.json.gz", "../traces/rank0_trace.json", "../ranks/rank1.log"):
        assert f'<a class="file" href="{place}">' in head
    assert 'href="http://mlflow:5000/#/experiments/1/runs/id-ddp"' in head
    assert '<p class="back"></p>' in head, "no comparison yet: a place for the way back"


def test_what_is_not_there_is_not_linked(tmp_path: Path) -> None:
    run = build_run_dir(tmp_path / "demo", "ddp", "ddp")
    (tmp_path / "demo" / "report").mkdir()
    (tmp_path / "demo" / "report" / "report.html").touch()
    assert '<p class="back"><a class="file" href="../../report/report.html">' in draw(run)
    (run := tmp_path / "other" / "ddp").mkdir(parents=True)
    (run / "config.json").write_text('{"run": "run"}')
    head = draw(run).partition("<nav")[0]
    assert "Logs" not in head and "MLflow" not in head and "rank 0</a>" not in head

"""The answer of a comparison as summary.md, for places that show Markdown.

`shorten_names` returns names of runs for a page: a sweep puts the comparison's name before each, which does not
distinguish them. `name_configurations` returns differences between configurations instead of single repeats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from stratlab.compare.answers import Answer, name_answers, say_answer
from stratlab.compare.causes import format_ms
from stratlab.compare.efficiency import name_series, say_sharding
from stratlab.compare.placement import ComparedRun
from stratlab.compare.search_ranking import say_search
from stratlab.compare.tradeoffs_view import SHARDING_COLUMNS, build_search_rows, list_columns, list_points
from stratlab.compare.trust import judge_trust
from stratlab.compare.verdict_view import (
    describe_origin,
    describe_work,
)
from stratlab.compare.winners import BY_KEY, read_winners
from stratlab.drawing import Column, Columns, escape_markdown, markdown_table
from stratlab.wording import format_count, quote

Report = Mapping[str, Any]
SHORT = "Names of runs are shown without {}, which begins all of them"
PLACES = ("run_dir", "folder")
"""Keys of the report that hold paths."""
LEAST = 8
"""Letters to remove: a smaller gain is not worth names that differ from the runs' own."""
KEPT = {True: "kept", False: "not kept", None: "not known"}
RUNS: Columns = (
    *("run", "strategy", "status", Column("world_size", "ranks")),
    Column("samples_per_s", "samples", "per s", 1),
    Column("tokens_per_s", "tokens", "per s", 0),
    Column("step_time_ms_p50", "step p50", "ms", 2),
    Column("noise_ms", "\N{PLUS-MINUS SIGN}", "ms", 2),
    Column("state_memory_gib", "state per rank", "GiB"),
    Column("peak_memory_gib", "device peak", "GiB", 2),
    Column("comm_exposed_pct", "exposed comm.", "%", 1),
    Column("validation_accuracy_pct", "validation accuracy", "%", 2),
    Column("test_accuracy_pct", "test accuracy", "%", 2),
    Column("validation_perplexity", "validation perplexity", digits=3),
    Column("test_perplexity", "test perplexity", digits=3),
)


def shorten_names(
    report: Mapping[str, Any], runs: Sequence[ComparedRun]
) -> tuple[Mapping[str, Any], Sequence[ComparedRun], str]:
    """Return (the report, its runs, the removed prefix), shortened if all names begin with the comparison's.

    The prefix must have LEAST letters or more. Names are shortened as keys, as values and in sentences, but not in
    paths (PLACES among them) and links.
    """
    names = [row["run"] for row in report["runs"]]
    prefix = _find_prefix(str(report["comparison"]), names)
    if not prefix:
        return report, runs, ""
    configurations = [row.get("configuration", "") for row in report["runs"]]
    short = {name: name.removeprefix(prefix) for name in (*configurations, *names)}
    shown = {name: node if name == "comparison" else _rename(node, short) for name, node in report.items()}
    return shown, [replace(run, name=short.get(run.name, run.name)) for run in runs], prefix


def _rename(node: Any, names: Mapping[str, str]) -> Any:
    """Return the report with other names in keys, values and sentences, except in paths and links."""
    words = "|".join(re.escape(name) for name in sorted(filter(None, names), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w/.=-])(?:{words})(?![\w/-])")

    def change(node: Any) -> Any:
        if isinstance(node, str):
            return pattern.sub(lambda found: names[found[0]], node)
        if isinstance(node, Mapping):
            return {change(key): each if key in PLACES else change(each) for key, each in node.items()}
        return [change(each) for each in node] if isinstance(node, list | tuple) else node

    return change(node)


def name_configurations(report: Report) -> Report:
    """The report with the differences and the sharding of configurations: a run that stands for its repeats has their
    name."""
    names = {row["run"]: row["configuration"] for row in report["runs"]}
    ends = {pair[end] for pair in report["attribution"]["pairs"] for end in ("run", "baseline")}
    stand = {run: names[run] for run in ends if names[run] != run}
    sharding = {names[entry["run"]]: entry for entry in reversed(report["sharding"])}
    shards = [{**entry, "run": name} for name, entry in reversed(sharding.items())]
    found = _rename(report["attribution"], stand) if stand else report["attribution"]
    return {**report, "attribution": found, "sharding": shards}


def _find_prefix(comparison: str, names: Sequence[str]) -> str:
    """Return the comparison's name as a prefix of all runs: its own, or a sweep's form of it.

    Otherwise return the common beginning of all names up to a hyphen.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", comparison.lower()).strip("-")
    words = zip(*(name.split("-") for name in names), strict=False)
    common = "-".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, words))
    for begin in dict.fromkeys((comparison, slug, f"s-{slug}", common)):
        prefix = f"{begin}-"
        if len(prefix) >= LEAST and all(name.startswith(prefix) and name != prefix for name in names):
            return prefix if len(names) > 1 else ""
    return ""


def build_markdown(report: Report, runs: Sequence[ComparedRun] = ()) -> str:
    """The text of summary.md. Every text from outside is escaped.

    Args:
        runs: of the report, as for `say_answer`.
    """
    report, runs, prefix = shorten_names(name_configurations(report), runs)
    headline, rows, trust = report["headline"], report["runs"], judge_trust(report)
    about = [describe_work(report), describe_origin(report), f"{SHORT.format(prefix)}." if prefix else ""]
    known = [c for c in RUNS if isinstance(c, str) or any(row[c.key] is not None for row in rows)]
    blocks = [
        f"# Comparison {escape_markdown(quote(report['comparison']))}",
        escape_markdown(say_answer(report, runs)),
        escape_markdown(" ".join(filter(None, about))),
        f"**{escape_markdown(headline['verdict'])}**: {escape_markdown(headline['reason'])}.",
        escape_markdown(f"Fair? {trust.answer}: {trust.say()}."),
        _list(headline["answers"]),
        _list(report["remarks"]),
    ]
    for group in report["group_winners"] or [report]:
        best = [{"question": w.metric.name, "best run": w.run, "why": w.reason} for w in read_winners(group)]
        among = f" among {escape_markdown(', '.join(group['runs']))}" if report["group_winners"] else ""
        blocks += [f"## Best{among}", markdown_table(best, ["question", "best run", "why"])]
    blocks += ["## Runs", markdown_table(rows, known)]
    if search := report["search"]:
        blocks += ["## Search", _list(say_search(search))]
        if search["points"]:
            blocks.append(markdown_table(build_search_rows(search), list_columns(search)))
    for series in report["scaling"]:
        where = f"{series['what']}; {series['hardware']}, backend {series['backend']}"
        cpu = f" {series['note']}." if series["note"] else ""
        blocks += [
            f"## {escape_markdown(name_series(series))}: {series['kind']} scaling",
            escape_markdown(f"{where}, {format_count(series['repeats'], 'repeat')} at least.{cpu}"),
            markdown_table(*list_points(series)),
        ]
    if entries := [{**entry, "kept": KEPT[entry["kept"]]} for entry in report["sharding"]]:
        blocks += ["## Sharding", markdown_table(entries, SHARDING_COLUMNS)]
    if sentences := [pair["sentence"] for pair in report["attribution"]["pairs"]]:
        blocks += ["## Why", _list(sentences)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"* {escape_markdown(sentence)}" for sentence in sentences)


SHORT_WHY = 30
"""Letters of a reason that fits into the first line."""


def describe(report: Mapping[str, Any]) -> str:
    """Return the answer in Markdown: the best by each measure, whether to trust it, and why the others are slower."""
    report = name_configurations(report)
    headline, trust = report["headline"], judge_trust(report)
    won = [f"{BY_KEY[metric].name}: **{run}**" for metric, run in report["winners"].items() if run]
    # MLflow shows the first line until a reader expands it
    short = [
        f"{each.question.rstrip('?').partition(' for ')[0]}: {_name(each)}" for each in name_answers(report)
    ]
    if short and trust.times and trust.doubts:
        short[-1] += f" ({trust.doubts[0].name})"
    lines = ["; ".join(short)] * bool(short)
    lines += [f"{say_answer(report)} **Fair? {trust.answer}**: {trust.say()}."]
    lines.append(f"**{headline['verdict']}**: {headline['reason']}; best: {', '.join(won) or 'none named'}")
    lines += [f"* {answer}" for answer in headline["answers"]]
    also = [*say_search(report["search"])[1:], *say_sharding(report["sharding"]), *report["remarks"]]
    lines += [f"* {each}" for each in also]
    lines += [pair["sentence"] for pair in report["attribution"]["pairs"]]
    return "\n\n".join(lines)


def _name(answer: Answer) -> str:
    """`**fsdp** (0.72 MiB)`, or `not named (CPU times are not ranked)`."""
    if answer.open and answer.question == "Fastest" and len(answer.why) <= SHORT_WHY:
        return f"{answer.answer} ({answer.why})"
    if answer.open or answer.doubtful:
        return answer.answer
    return f"**{answer.answer}** ({answer.number}, {answer.why.partition(', ')[0].partition(';')[0]})"


def describe_compared(report: Mapping[str, Any], run: str) -> str:
    """Return the same for one run: the measures that it is best in, whether to trust them, and its slowness."""
    names, trust = {row["run"]: row["configuration"] for row in report["runs"]}, judge_trust(report)
    groups = [group for group in report["group_winners"] if run in group["runs"]] or [report]
    reasons = groups[0]["winner_reasons"]
    found = [
        f"{BY_KEY[metric].name} ({reasons[metric].partition(';')[0]})"
        for metric, best in groups[0]["winners"].items()
        if best == names[run]
    ]
    all_pairs = name_configurations(report)["attribution"]["pairs"]
    pairs = [pair for pair in all_pairs if pair["run"] == names[run]]
    found += [
        f"{format_ms(abs(pair['difference_ms']))} a step ({abs(pair['difference_pct']):.0f} %) "
        f"{'slower' if pair['difference_ms'] >= 0 else 'faster'} than {pair['baseline']}"
        for pair in pairs
        if pair["comparable"] and pair["times_comparable"]
    ]
    lines = [
        f"**Compared with {format_count(len(names) - 1, 'run')}**: {'; '.join(found) or 'best in nothing named'}. "
    ]
    lines[0] += f"**Fair? {trust.answer}**: {trust.say()}."
    return "\n\n".join([*lines, *(pair["sentence"] for pair in pairs)])

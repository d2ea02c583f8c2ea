"""The parts of the page that judge: may the runs be compared, who is best, do they compute the same.

What the step times on the page can and cannot say where nobody wins in time: said once, where the answer is.

The banner at the head of the page: where the numbers come from, and what they can and cannot say. No section says it
again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.comparison import NOT
from stratlab.compare.fairness import AS_SEARCH, FIRST_STEPS, UNSHOWN
from stratlab.compare.run_rows import RULE, find_recorded_step_ms, is_compared
from stratlab.compare.search_ranking import say_search
from stratlab.compare.tradeoffs_view import build_goals_html, build_tiles, draw_pareto
from stratlab.compare.winners import LEAST_LEAD_PCT, METRICS, NOT_RECORDED, ON_CPU, ONE_REPEAT
from stratlab.drawing import Column, Section, badge, details, html_table, loud, note, paragraph
from stratlab.run_directory.files import is_number
from stratlab.run_directory.record import TRACED
from stratlab.wording import count_processes, format_count, format_fact, format_number

SHOWN = "Step times and their differences are shown all the same"
OF_ALL = "Step times of all runs are shown below"
TIMED = tuple(metric.key for metric in METRICS if metric.timed)
OF_CPU = (
    "they say where the time of a step went on these CPUs. They do not say which strategy is faster on GPUs, or by how "
    "much"
)
OF_WORK = {
    AS_SEARCH: "what was varied changes them, too, so that none is the strategy's alone",
    UNSHOWN: "whether the runs did the same work is not known, so that none need be the strategy's",
}
OTHER_WORK = (
    "between runs that are not comparable they hold all that differs, so that none is the strategy's alone"
)
NO_REPEAT_REMARK = (
    f"below {LEAST_LEAD_PCT:g} % of a step they may be chance, and another start may turn them round; a larger one was "
    "seen once"
)
REPEATS = (
    "up to {pct:.2g} % of a step they may be chance, and so may the order of runs whose repeats overlap: another start "
    "may turn them round. Any other is more than chance"
)
DEGENERATE = "a difference from a degenerate run ({runs}) says nothing of what its name promises"


def say_differences(report: Mapping[str, Any]) -> str:
    """Sentences; "" where somebody wins in time over all others, or nothing is there to be held against another."""
    ended = [row for row in report["runs"] if is_compared(row) or row["degenerate"]]
    timed = [row for row in ended if row["step_time_ms_p50"] or find_recorded_step_ms(row)]
    verdict = report["fairness"]["verdict"]
    groups = [report] if verdict == "comparable" else report["group_winners"]
    if len(timed) < 2 or (verdict == "comparable" and not _list_reasons(groups)):
        return ""
    apart = verdict != "comparable" and len(report["fairness"]["groups"]) > 1
    said = [OF_WORK.get(verdict, OTHER_WORK)] if apart else []
    reasons = [reason for reason in _list_reasons(groups) if not reason.startswith(NOT_RECORDED)]
    if ON_CPU in report["remarks"]:
        said.append(OF_CPU)
    elif reasons:
        pct = report["noise"]["relative_pct"]
        said.append(
            NO_REPEAT_REMARK if pct is None else REPEATS.format(pct=math.sqrt(2) * pct)
        )  # of two runs
    if lacking := [row["run"] for row in timed if row["degenerate"]]:
        said.append(DEGENERATE.format(runs=", ".join(lacking)))
    if not said:
        return ""
    lead = SHOWN if not groups or _list_reasons(groups) else OF_ALL
    first, *others = said
    return " ".join([f"{lead}: {first}.", *(f"{each[:1].upper()}{each[1:]}." for each in others)])


def _list_reasons(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why nobody wins in time."""
    return [
        found["winner_reasons"][key] for found in groups for key in TIMED if found["winners"][key] is None
    ]


MOST_VALUES = 4
MOST_PAIRS = 15
"""Six runs; up to here every pair stands in one table."""
AGREES = {True: badge("agree", "good"), False: badge("disagree", "bad"), None: badge("unknown", "warn")}


def describe_origin(report: Mapping[str, Any], versions: bool = True) -> str:
    """One line: hardware, backend, processes, steps, repeats, and versions unless they stand elsewhere."""
    origin = report["origin"]
    if is_foreign(report):
        return (
            f"Traces of another program, recorded on {either(origin['hardware'])}, "
            f"backend {either(origin['backend'])}, {either(origin['world_size'])} processes."
        )
    found = f" {describe_versions(report)}" if versions else ""
    return (
        f"Measured on {either(origin['hardware'])} ({either(origin['device'])}), "
        f"backend {either(origin['backend'])}, "
        f"{describe_processes(origin)}, "
        f"{either(origin['steps'])} steps of which {either(origin['measured_steps'])} are timed, "
        f"{_describe_repeats(report)}.{found}"
    )


def describe_work(report: Mapping[str, Any]) -> str:
    """One sentence: what was trained on what; "" where no run tells, as traces of other programs."""
    told = {
        name: " / ".join(dict.fromkeys(format_fact(row[name]) for row in report["runs"] if row.get(name)))
        for name in ("model", "dataset", "global_batch_size", "precision")
    }
    if not told["model"]:
        return ""
    words = [f"{told['model']} on {told['dataset']}" if told["dataset"] else told["model"]]
    if told["global_batch_size"]:
        words.append(f"{told['global_batch_size']} samples a step")
    return ", ".join(filter(None, [*words, told["precision"]])) + "."


def describe_processes(origin: Mapping[str, Any]) -> str:
    """`2 processes on 1 node`, in how many pods; several numbers where the runs differ."""
    asked = (origin.get(name) for name in ("world_size", "nodes", "machines"))  # a kept tuning may be older
    return count_processes(*(value if value in (1, None) else either(value) for value in asked))


def describe_versions(report: Mapping[str, Any]) -> str:
    """One line: what the runs were made with."""
    found = [f"{name} {either(version)}" for name, version in report["origin"]["versions"].items()]
    return f"{', '.join(found)}." if found else ""


def _describe_repeats(report: Mapping[str, Any]) -> str:
    points = (report["search"] or {}).get("points")
    if points:
        seeds = sorted({point["seeds"] for point in points})
        told = seeds[0] if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        return f"{format_count(told, 'seed')} for each point of the search"
    counts = sorted({len(variant) for variant in report["noise"]["variants"]}) or [
        report["origin"]["repeats"]
    ]
    told = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    many = len(report["noise"]["variants"]) > len({row["strategy"] for row in report["runs"]})
    return f"{format_count(told, 'repeat')} per {'strategy and setting' if many else 'strategy'}"


def is_foreign(report: Mapping[str, Any]) -> bool:
    """Whether nothing but traces is known of any of its runs."""
    return all(row["status"] == TRACED for row in report["runs"])


def build_verdict(report: Mapping[str, Any]) -> Section:
    """The answer first."""
    fairness = report["fairness"]
    comparable = fairness["verdict"] == "comparable"
    headline = report["headline"]
    kind = "good" if comparable else "bad" if headline["verdict"] == NOT else "warn"
    html = paragraph(badge(headline["verdict"], kind) + f" {headline['reason']}.")
    for said in headline["answers"]:
        html += paragraph(f"{said}.")
    if report["search"]:
        html += paragraph(f"{'; '.join(say_search(report['search']))}.")
    for entry in report["not_runs"]:
        html += note(f"Left out: {entry['folder']} {entry['why']}.")
    means = say_differences(report)
    if comparable:
        html += build_tiles(report, means)
    for group in report["group_winners"]:
        names = ", ".join(group["runs"])
        html += paragraph(f"Comparable with each other are {names}. Among them:") + build_tiles(group)
    if not comparable and not report["group_winners"]:
        html += paragraph("No run is named as the best in anything.")
    if not comparable and means:
        html += paragraph(means)
    for entry in report["pareto"]:
        html += draw_pareto(entry, of_several=len(report["pareto"]) > 1)
    return Section("Verdict", html + details("By goal", build_goals_html(report)))


def build_fairness(report: Mapping[str, Any]) -> Section:
    """Every difference, and what does not differ, folded."""
    fairness = report["fairness"]
    runs = list(dict.fromkeys(name for entry in fairness["differences"] for name in entry["values"]))
    keys = {name: f"value of {name}" for name in runs}
    rows = [
        {
            "field": entry["field"],
            "matters": badge("varied", "good")
            if entry["varied"]
            else badge("matters", "bad")
            if entry["matters"]
            else badge("harmless", "plain"),
            "why": entry["why"],
            **{keys[name]: _short(value) for name, value in entry["values"].items()},
        }
        for entry in fairness["differences"]
    ]
    columns: list[Column | str] = [
        *("field", "matters", Column("why", wide=True)),
        *(Column(keys[name], name) for name in runs),
    ]
    html = html_table(rows, columns) if rows else paragraph("Nothing differs.")
    same = [{"field": name, "value": _short(value)} for name, value in fairness["same"].items()]
    return Section(
        "Fairness", html + details(f"{len(same)} facts are equal", html_table(same, ["field", "value"]))
    )


def build_agreement(report: Mapping[str, Any]) -> Section:
    """Pairs of runs and how far apart their first losses are; of many, those to which nothing is allowed are folded."""
    rows = [
        {
            "pair": " and ".join(pair["runs"]),
            **{name: value for name, value in pair.items() if name != "runs"},
            "agrees": AGREES[pair["agrees"]] if pair["allowed_pct"] is not None else None,
        }
        for pair in report["loss_agreement"]["pairs"]
    ]
    columns: list[Column | str] = [
        Column("pair", "runs"),
        Column("steps", "steps compared"),
        Column("max_abs_loss_difference", "largest loss difference"),
        Column("max_rel_loss_difference", "relative to the loss"),
        Column("loss_difference_pct", "to the mean loss", "%"),
        Column("allowed_pct", "allowed", "%"),
        Column("allowed_by", "by"),
        Column("agrees", ""),
        Column("first_grad_norm_difference", "gradient norm of step 1, difference"),
    ]
    remark = note(
        f"Over the first {FIRST_STEPS} steps. Runs that compute the same training differ by rounding only, "
        "because sums are taken in another order; in fp32 that is 0 to about 1e-5 of the loss. Runs that are further "
        "apart than is allowed do not train the same way: their speeds answer different questions, and they are not "
        "compared. Nothing is allowed to runs that other facts keep apart, such as the seed."
    )
    apart = [row for row in rows if row["allowed_pct"] is None] if len(rows) > MOST_PAIRS else []
    shown = [row for row in rows if row not in apart]
    html = html_table(shown, columns) if shown or not apart else Markup("")
    if apart:
        html += details(f"{len(apart)} pairs that other facts keep apart", html_table(apart, columns))
    return Section("Do they compute the same?", html + remark)


def build_sources(report: Mapping[str, Any]) -> Section:
    """Where each number comes from, and which files are missing."""
    sources = [
        (
            "step times, throughput, phases",
            "metrics.jsonl, without the profiled steps, the one after them, and the warm-up, which is cut by a rule: "
            f"{RULE}; summary.json for runs without metrics",
        ),
        ("p50, p95", "over the measured steps of one run: spread within a run, not between repeats"),
        ("±", "from repeats of the same settings with any seed; without repeats there is none"),
        ("why", "parts of analysis/report.json of both runs; the step times from the untraced steps"),
        ("memory held by the state", "ranks/rank*.json: bytes of the tensors, the largest rank"),
        ("peak on the device", "torch's allocator; there is none on CPU"),
        ("communication, idle", "analysis/report.json, from the traced steps only"),
        ("accuracy, perplexity, loss", "evaluation.json for the test split, metrics.jsonl for the rest"),
        ("tokens", "metrics.jsonl: all places of the rows; useful are those that hold a document"),
        (
            "bytes and calls per axis",
            "counted by every rank in one step; the rank that sends most on the axis",
        ),
    ]
    html = html_table([{"number": a, "comes from": b} for a, b in sources], ["number", "comes from"])
    rows = [
        {
            **row,
            "warmup": f"{cut['steps']} steps: {cut['method']}" if (cut := row["warmup"]) else None,
            "complete": badge("complete", "good") if row["complete"] else badge("not complete", "warn"),
            "lacks": ", ".join([*row["missing"], *row["problems"]]) or None,
        }
        for row in report["runs"]
    ]
    columns: list[Column | str] = [
        "run",
        "complete",
        "lacks",
        "attempts",
        Column("ending", "how it ended"),
        Column("step_times_from", "step times from"),
        Column("warmup", "warm-up left out"),
        "run_dir",
        "mlflow_run_id",
    ]
    return Section("Where the numbers come from", html + html_table(rows, columns))


def either(value: Any) -> str:
    """A fact of the origin; a list holds the values on which the runs differ. Of many numbers the range is enough."""
    if isinstance(value, list) and len(value) > MOST_VALUES and all(map(is_number, value)):
        return f"{format_number(min(value))} to {format_number(max(value))}"
    return " / ".join(map(either, value)) if isinstance(value, list) else format_number(value)


def _short(value: Any) -> Any:
    """Hashes are cut: their first letters tell them apart."""
    if isinstance(value, str) and len(value) >= 40 and " " not in value:
        return Markup('<span title="{}">{}…</span>').format(value, value[:12])
    if isinstance(value, list):
        return ", ".join(map(format_fact, value))
    return format_fact(value) if isinstance(value, (dict, int, float)) else value


FEW_STEPS = 10
"""Timed steps of a run below which its median may be chance."""
UNSTEADY = 3.0
"""Times the median that one step in twenty takes or exceeds: from here on something else was at work."""
HOLDS = "What is counted holds on any hardware: memory held by the state, bytes and calls, losses"
ON_HOST = (
    "Traces without GPU events show the host's operators, and ranks on shared cores wait for each other's computation, "
    "too: parts and shares of a step say nothing about GPUs"
)
NO_BAND = f"Differences below {LEAST_LEAD_PCT:g} % count as none"


def build_banner(report: Mapping[str, Any]) -> list[str | Markup]:
    """Sentences, those first that weigh most."""
    rows = report["runs"]
    few = say_few_steps(rows)
    compared = [row for row in rows if is_compared(row)]
    more = {ON_CPU: HOLDS, ONE_REPEAT: NO_BAND}
    said = [describe_origin(report, versions=False)]
    for remark, limit in zip(report["remarks"], say_limits(report), strict=True):
        said.append(f"{limit} {more[remark]}." if remark in more else limit)
    if any(row["trace_source"] == "cpu" for row in compared):
        said.append(f"{ON_HOST}.")
    said += [f"{note[:1].upper()}{note[1:]}." for note in _list_scaling_notes(report)]
    if unsettled := [row["run"] for row in rows if row["warmup"] and not row["warmup"]["settled"]]:
        said.append(
            f"Still changing when half of the steps were left out, or too short to tell: {', '.join(unsettled)}."
        )
    return [*map(loud, filter(None, (few, say_unsteady(rows)))), *said]


def say_few_steps(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of which runs so few steps are timed that a median of them may be chance; "" where there are enough."""
    counts = {row["run"]: row["measured_steps"] for row in rows if is_compared(row)}
    few = {run: count for run, count in counts.items() if count is not None and 0 < count < FEW_STEPS}
    if not few:
        return ""
    if len(few) == len(counts) and len(set(few.values())) == 1:
        count = next(iter(few.values()))
        said = (
            f"Only {format_number(count)} step{'s' * (count > 1)} of {'each' if len(few) > 1 else 'the'} run"
        )
    else:
        said = f"Only a few steps ({', '.join(f'{run} {count}' for run, count in few.items())})"
    verb = "is" if said.startswith("Only 1 ") else "are"
    return f"{said} {verb} timed: a time from so few can be chance. Train longer before you trust one."


def say_unsteady(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whose steps are so uneven that another start may give another answer; "" where none is."""
    found = {
        row["run"]: row["step_time_ms_p95"] / row["step_time_ms_p50"]
        for row in rows
        if is_compared(row) and row["step_time_ms_p95"] and row["step_time_ms_p50"]
    }
    uneven = {run: ratio for run, ratio in found.items() if ratio >= UNSTEADY}
    if not uneven:
        return ""
    told = ", ".join(f"{run} {format_number(ratio, 0)}" for run, ratio in uneven.items())
    return (
        f"One step in twenty takes several times the median or more ({told} times): other programs were at work, or "
        "network or data stood still now and then. Start it again on a quiet machine before you trust a time."
    )


def say_limits(report: Mapping[str, Any]) -> list[str]:
    """The remarks of the report, a sentence each. A run's name stays as it is."""
    runs = {row["run"] for row in report["runs"]}
    return [
        f"{remark}." if remark.split()[0].rstrip(",:") in runs else f"{remark[:1].upper()}{remark[1:]}."
        for remark in report["remarks"]
    ]


def _list_scaling_notes(report: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(series["note"] for series in report["scaling"] if series["note"]))

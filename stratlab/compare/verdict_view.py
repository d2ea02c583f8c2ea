"""The parts of the page that judge: may the runs be compared, who is best, do they compute the same.

build_banner      the head of the page: where the numbers come from, and what they can and cannot say; no section says
                  it again
build_verdict     the answer first; `say_differences`: what step times say where nobody wins in time
build_fairness, build_agreement, build_sources   what the answer rests on
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from stratlab.compare.fairness import AS_SEARCH, COMPARABLE, FIRST_STEPS, NOT_COMPARABLE, UNSHOWN
from stratlab.compare.rules import Difference
from stratlab.compare.run_rows import Rows, read_rows
from stratlab.compare.search_ranking import say_search
from stratlab.compare.tradeoffs_view import build_goals_html, build_tiles, draw_pareto
from stratlab.compare.winners import LEAST_LEAD_PCT, NOT_RECORDED, ON_CPU, ONE_REPEAT, read_winners
from stratlab.drawing import Column, Columns, Section, badge, details, html_table, loud, note, paragraph
from stratlab.run_directory.files import is_number
from stratlab.run_directory.outcome import TRACED
from stratlab.wording import count_processes, format_count, format_fact, format_number
from stratlab_spec.timed_steps import RULE

Report = Mapping[str, Any]
"""report.json, with names of runs as they are shown."""
SHOWN = "Step times and their differences are shown all the same"
OF_ALL = "Step times of all runs are shown below"
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
MOST_VALUES = 4
MOST_PAIRS = 15
"""Six runs; up to here every pair stands in one table."""
AGREES = {True: badge("agree", "good"), False: badge("disagree", "bad"), None: badge("unknown", "warn")}
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
MORE = {ON_CPU: f" {HOLDS}.", ONE_REPEAT: f" {NO_BAND}."}
"""Remark of the report -> what the banner adds."""


def build_banner(report: Report) -> list[str | Markup]:
    """Sentences, those first that weigh most."""
    rows = read_rows(report)
    names = {row.run for row in rows}
    banner = [describe_origin(report, versions=False)]
    for remark in report["remarks"]:  # a run's name stays as it is
        is_of_run = remark.split()[0].rstrip(",:") in names
        banner.append(f"{remark if is_of_run else _capitalize(remark)}.{MORE.get(remark, '')}")
    if any(row.trace_source == "cpu" for row in rows if row.is_compared):
        banner.append(f"{ON_HOST}.")
    notes = dict.fromkeys(series["note"] for series in report["scaling"] if series["note"])
    banner += [f"{_capitalize(each)}." for each in notes]
    if unsettled := ", ".join(row.run for row in rows if row.warmup and not row.warmup["settled"]):
        banner.append(
            f"Still changing when half of the steps were left out, or too short to tell: {unsettled}."
        )
    return [*map(loud, say_doubts(report)), *banner]


def _capitalize(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


def say_doubts(report: Report) -> list[str]:
    """What nobody must miss: too few steps, steps that are too uneven."""
    rows = read_rows(report)
    return [*filter(None, (say_few_steps(rows), say_unsteady(rows)))]


def say_few_steps(rows: Rows) -> str:
    """Of which runs so few steps are timed that a median of them may be chance; "" where there are enough."""
    counts = {row.run: row.measured_steps for row in rows if row.is_compared}
    few = {run: count for run, count in counts.items() if count is not None and 0 < count < FEW_STEPS}
    if not few:
        return ""
    only, verb = f"Only a few steps ({', '.join(f'{run} {count}' for run, count in few.items())})", "are"
    if len(few) == len(counts) and len(set(few.values())) == 1:
        count, whose = next(iter(few.values())), "each" if len(few) > 1 else "the"
        only, verb = f"Only {format_count(count, 'step')} of {whose} run", "is" if count == 1 else "are"
    return f"{only} {verb} timed: a time from so few can be chance. Train longer before you trust one."


def say_unsteady(rows: Rows) -> str:
    """Whose steps are so uneven that another start may give another answer; "" where none is."""
    ratios = {
        row.run: row.step_time_ms_p95 / row.step_time_ms_p50
        for row in rows
        if row.is_compared and row.step_time_ms_p95 and row.step_time_ms_p50
    }
    uneven = [f"{run} {format_number(ratio, 0)}" for run, ratio in ratios.items() if ratio >= UNSTEADY]
    if not uneven:
        return ""
    return (
        f"One step in twenty takes several times the median or more ({', '.join(uneven)} times): other programs were "
        "at work, or network or data stood still now and then. Start it again on a quiet machine before you trust a "
        "time."
    )


def describe_origin(report: Report, versions: bool = True) -> str:
    """One line: hardware, backend, processes, steps, repeats, and versions unless they stand elsewhere."""
    told = {name: either(value) for name, value in report["origin"].items() if name != "versions"}
    if is_foreign(report):
        return (
            f"Traces of another program, recorded on {told['hardware']}, "
            f"backend {told['backend']}, {told['world_size']} processes."
        )
    return (
        f"{describe_hardware(report['origin'])}, {told['steps']} steps of which {told['measured_steps']} are timed, "
        f"{_describe_repeats(report)}.{f' {describe_versions(report)}' if versions else ''}"
    )


def describe_hardware(origin: Mapping[str, Any]) -> str:
    """`Measured on 4 GPUs (cuda), backend nccl, 4 processes on 1 node`."""
    hardware, device, backend = (either(origin[name]) for name in ("hardware", "device", "backend"))
    # `2 processes on 1 node`, in how many pods; several numbers where the runs differ
    asked = (origin.get(name) for name in ("world_size", "nodes", "machines"))  # a kept tuning may be older
    processes = count_processes(*(value if value in (1, None) else either(value) for value in asked))
    return f"Measured on {hardware} ({device}), backend {backend}, {processes}"


def describe_work(report: Report) -> str:
    """One sentence: what was trained on what; "" where no run tells, as traces of other programs."""
    model, dataset, samples, precision = (
        " / ".join(dict.fromkeys(format_fact(row[name]) for row in report["runs"] if row.get(name)))
        for name in ("model", "dataset", "global_batch_size", "precision")
    )
    if not model:
        return ""
    what = f"{model} on {dataset}" if dataset else model
    return ", ".join(filter(None, (what, f"{samples} samples a step" if samples else "", precision))) + "."


def describe_versions(report: Report) -> str:
    """One line: what the runs were made with."""
    found = [f"{name} {either(version)}" for name, version in report["origin"]["versions"].items()]
    return f"{', '.join(found)}." if found else ""


def _describe_repeats(report: Report) -> str:
    points, variants = (report["search"] or {}).get("points"), report["noise"]["variants"]
    if points:
        counts = sorted({point["seeds"] for point in points})
    else:
        counts = sorted({len(variant) for variant in variants}) or [report["origin"]["repeats"]]
    span = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if points:
        return f"{format_count(span, 'seed')} for each point of the search"
    many = len(variants) > len({row["strategy"] for row in report["runs"]})
    return f"{format_count(span, 'repeat')} per {'strategy and setting' if many else 'strategy'}"


def is_foreign(report: Report) -> bool:
    """Whether nothing but traces is known of any of its runs."""
    return all(row["status"] == TRACED for row in report["runs"])


def say_differences(report: Report) -> str:
    """Sentences; "" where somebody wins in time over all others, or nothing is there to be held against another."""
    ended = [row for row in read_rows(report) if row.is_compared or row.degenerate]
    timed = [row for row in ended if row.step_time_ms_p50 or row.recorded_step_ms]
    verdict = report["fairness"]["verdict"]
    groups = [report] if verdict == COMPARABLE else report["group_winners"]
    nobody = [w for group in groups for w in read_winners(group) if w.metric.timed and w.run is None]
    if len(timed) < 2 or (verdict == COMPARABLE and not nobody):
        return ""
    apart = verdict != COMPARABLE and len(report["fairness"]["groups"]) > 1
    told = [OF_WORK.get(verdict, OTHER_WORK)] if apart else []
    if ON_CPU in report["remarks"]:
        told.append(OF_CPU)
    elif any(not winner.reason.startswith(NOT_RECORDED) for winner in nobody):
        pct = report["noise"]["relative_pct"]
        told.append(
            NO_REPEAT_REMARK if pct is None else REPEATS.format(pct=math.sqrt(2) * pct)
        )  # of two runs
    if lacking := ", ".join(row.run for row in timed if row.degenerate):
        told.append(DEGENERATE.format(runs=lacking))
    if not told:
        return ""
    first, *others = told
    lead = SHOWN if not groups or nobody else OF_ALL
    return " ".join([f"{lead}: {first}.", *(f"{_capitalize(each)}." for each in others)])


def build_verdict(report: Report) -> Section:
    """The answer first."""
    headline, groups = report["headline"], report["group_winners"]
    comparable = report["fairness"]["verdict"] == COMPARABLE
    kind = "good" if comparable else "bad" if headline["verdict"] == NOT_COMPARABLE else "warn"
    html = paragraph(badge(headline["verdict"], kind) + f" {headline['reason']}.")
    for answer in headline["answers"]:
        html += paragraph(f"{answer}.")
    if report["search"]:
        html += paragraph(f"{'; '.join(say_search(report['search']))}.")
    for entry in report["not_runs"]:
        html += note(f"Left out: {entry['folder']} {entry['why']}.")
    means = say_differences(report)
    if comparable:
        html += build_tiles(read_winners(report), means)
    for group in groups:
        names = ", ".join(group["runs"])
        html += paragraph(f"Comparable with each other are {names}. Among them:")
        html += build_tiles(read_winners(group))
    if not comparable and not groups:
        html += paragraph("No run is named as the best in anything.")
    if not comparable and means:
        html += paragraph(means)
    for entry in report["pareto"]:
        html += draw_pareto(entry, of_several=len(report["pareto"]) > 1)
    return Section("Verdict", html + details("By goal", build_goals_html(report)))


def build_fairness(report: Report) -> Section:
    """Every difference, and what does not differ, folded."""
    differences = [Difference(**entry) for entry in report["fairness"]["differences"]]
    runs = list(dict.fromkeys(name for entry in differences for name in entry.values))
    badges = {True: badge("matters", "bad"), False: badge("harmless", "plain")}
    rows = [
        {
            "field": entry.field,
            "matters": badge("varied", "good") if entry.varied else badges[entry.matters],
            "why": entry.why,
            **{f"value of {name}": _short(value) for name, value in entry.values.items()},
        }
        for entry in differences
    ]
    of_runs = [Column(f"value of {name}", name) for name in runs]
    html = paragraph("Nothing differs.")
    if rows:
        html = html_table(rows, ["field", "matters", Column("why", wide=True), *of_runs])
    same = [{"field": name, "value": _short(value)} for name, value in report["fairness"]["same"].items()]
    html += details(f"{len(same)} facts are equal", html_table(same, ["field", "value"]))
    return Section("Fairness", html)


def build_agreement(report: Report) -> Section:
    """Pairs of runs and how far apart their first losses are; of many, those to which nothing is allowed are folded."""
    rows = [
        {
            **pair,
            "pair": " and ".join(pair["runs"]),
            "agrees": AGREES[pair["agrees"]] if pair["allowed_pct"] is not None else None,
        }
        for pair in report["loss_agreement"]["pairs"]
    ]
    columns: Columns = [
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


def build_sources(report: Report) -> Section:
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
    columns: Columns = [
        *("run", "complete", "lacks", "attempts", Column("ending", "how it ended")),
        *(Column("step_times_from", "step times from"), Column("warmup", "warm-up left out")),
        *("run_dir", "mlflow_run_id"),
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

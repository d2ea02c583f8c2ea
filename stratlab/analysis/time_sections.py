"""Sections of the page about time: one step, its parts and phases, ranks, collectives, GPU events, idle time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.summaries import (
    PHASES,
    build_collective_summary,
    build_copy_summary,
    build_idle_summary,
    build_kernel_summary,
    build_phase_parts,
    build_rank_parts,
    build_step_parts,
    describe_collective,
    divide,
    say_forecast,
    sum_known,
    sum_named_parts,
)
from stratlab.analysis.time_breakdown import STATES, DrawnCall, DrawnStep, coarsen
from stratlab.drawing import (
    Column,
    Columns,
    Section,
    details,
    histogram,
    html_table,
    note,
    stacked_bars,
    subtitle,
)
from stratlab.drawing.canvas import Span, TimelineRow, build_timeline
from stratlab.wording import fit_digits, format_count, format_number, format_range
from stratlab_spec.step_parts import (
    BUBBLE,
    COLOURS,
    COMMUNICATION,
    DATA,
    HOST,
    IDLE,
    IDLE_PARTS,
    LAST_RANK,
    LAUNCH,
    PARTS,
    WORDS,
)

OF_SHARE = {
    "comm_pct": COMMUNICATION,
    "comm_exposed_pct": f"exposed {COMMUNICATION}",
    "comm_overlap_pct": f"hidden share of {COMMUNICATION}",
    "straggler_pct": LAST_RANK,
    "data_wait_pct": DATA,
    "host_wait_pct": HOST,
}
OF_STATE = {STATES.index(part.name): COLOURS[part.words] for part in PARTS if part.key}
MOST_ROWS = 120  # of a table; the CSV has all


def build_table(rows: Iterable[Mapping[str, Any]], columns: Columns) -> Markup:
    """Return a table without empty columns; percentages have the names of the parts."""
    known = list(rows)
    shown = [
        Column(name, OF_SHARE.get(name, ""), "%" if name in OF_SHARE else "", 1)
        if isinstance(name, str) and name.endswith("_pct")
        else name
        for name in columns
        if any(row.get(name if isinstance(name, str) else name.key) is not None for row in known)
    ]
    return html_table(known, shown) if shown else Markup("")


def build_step_bar(report: Mapping[str, Any]) -> Markup:
    """Draw the parts of the mean recorded step; the key of each shows its time and its share."""
    step_ms, parts = report["mean"].get("step_ms"), sum_named_parts(report)
    if not step_ms or not parts:
        return Markup("")
    digits = fit_digits(parts.values())
    keys = {name: f"{name} {ms:,.{digits}f} ms, {100 * ms / step_ms:.1f} %" for name, ms in parts.items()}
    colours = {keys[name]: COLOURS[name] for name in parts}
    bars = {"mean": {keys[name]: parts[name] for name in COLOURS if name in parts}}
    return stacked_bars(bars, "ms of the mean recorded step", colours, digits)


def build_forecast_bars(report: Mapping[str, Any]) -> Markup:
    """Draw the foreseen step above the recorded one, in the forecast's parts; empty without a forecast."""
    said = say_forecast(report)
    if not said:
        return Markup("")
    parts = report["forecast"]["parts"]
    bars = {
        name: {WORDS[part["part"]]: part[key] for part in parts}
        for name, key in (("foreseen", "ms"), ("recorded", "measured_ms"))
    }
    return stacked_bars(bars, "ms per step", COLOURS) + note(said)


def draw_step(report: Mapping[str, Any], ranks: Sequence[RankAnalysis], chosen: Sequence[int]) -> Markup:
    """Draw one recorded step of the chosen ranks: phases, parts and collectives; empty if no rank recorded it."""
    steps = {rank.rank: rank.drawn for rank in ranks if rank.rank in set(chosen) and rank.drawn}
    if not steps:
        return Markup("")
    clocks = report.get("clocks") or {}
    offsets = {int(rank): ms for rank, ms in (clocks.get("offsets_ms") or {}).items() if ms is not None}
    starts = {rank: step.start_ns / 1e6 - offsets.get(rank, 0.0) for rank, step in steps.items()}
    first, longest_ms = min(starts.values()), max(step.length_ns for step in steps.values()) / 1e6
    one_clock = clocks.get("residual_ms") is not None or report["run"].get("machines") == 1
    compared = one_clock and max(starts.values()) - first < longest_ms
    coarser = 1 if len(steps) <= 4 else 4
    rows = [
        _draw_rank(rank, step, starts[rank] - first if compared else 0.0, coarser)
        for rank, step in steps.items()
    ]
    number, many = next(iter(steps.values())).step, (report["mean"].get("steps") or 1) > 1
    remarks = [
        f"Recorded step {number}{', the one of median length' * many}: phases, each rank's time in the colours above.",
        "Below it: its collectives, hidden ones too; red: waiting for the last rank."
        * any(r.boxes for r in rows),
        "Clocks are not compared: each rank counts from its own start." * (len(rows) > 1 and not compared),
        say_choice(chosen, len(ranks)),
    ]
    return build_timeline(rows, "ms") + note(" ".join(filter(None, remarks)))


def _draw_rank(rank: int, step: DrawnStep, start_ms: float, coarser: int) -> TimelineRow:
    def place(name: str, start_ns: int, end_ns: int) -> Span:
        took = f"{name}, {format_number((end_ns - start_ns) / 1e6)} ms"
        return Span(took, start_ms + start_ns / 1e6, start_ms + end_ns / 1e6)

    def draw_call(call: DrawnCall) -> Span:
        span = place(describe_collective(call.name, call.axis), call.start_ns, call.end_ns)
        size = "" if call.bytes is None else f", {format_number(call.bytes)} bytes"
        waited = f", of it {format_number(call.wait_ns / 1e6)} ms waiting" if call.wait_ns > 0 else ""
        share = divide(float(max(call.wait_ns, 0)), float(call.end_ns - call.start_ns), 100)
        return Span(span.tooltip + size + waited, span.start, span.end, min(share or 0.0, 100.0))

    return TimelineRow(
        label=f"rank {rank}",
        start=start_ms,
        end=start_ms + step.length_ns / 1e6,
        cells=[OF_STATE[state] for state in coarsen(step.states, coarser).tolist()],
        spans=[place(*phase) for phase in step.phases if phase[0] != "other"],
        boxes=[draw_call(call) for call in step.calls],
    )


def say_choice(chosen: Sequence[int], count: int) -> str:
    """Return which ranks the page draws; nothing if it draws all."""
    if len(chosen) >= count:
        return ""
    return (
        f"{len(chosen)} of {count} ranks are drawn on this page, {count - len(chosen)} are left out: drawn are the "
        f"slowest and the fastest, those that a finding names, and others spread evenly "
        f"({', '.join(map(str, chosen))}). tables/rank_metrics.csv has all."
    )


def build_phases(report: dict[str, Any]) -> Section:
    """Build the parts of each phase of the mean step."""
    parts, on_gpu = build_phase_parts(report), report["source"] == "gpu"
    if not parts:
        return Section("Phases", nothing="no phase is labelled in the traces")
    lacking = [
        f"rank {rank} has no label of {', '.join(missing)}."
        for rank, present in report["phases_present"].items()
        if (missing := [phase for phase in PHASES[:-1] if phase not in present])
    ]
    what = "GPU time: a phase lasts until its work is done" if on_gpu else "Time of each label on the host"
    html = stacked_bars(parts, "ms of the mean recorded step", COLOURS) + note(
        f"{what}. 'other' lies between the labels."
    )
    rows = [{"phase": phase, **row} for phase, row in parts.items()]
    digits = 2 if (report["mean"].get("step_ms") or 0) >= 10 else 4
    html += build_table(rows, [Column(n, n, "" if n == "phase" else "ms", digits) for n in rows[0]])
    if lacking:
        more = f", and {len(lacking) - 20} more ranks" if len(lacking) > 20 else ""
        html += note(" ".join(lacking[:20]) + more)
    columns = ["rank", "step", "step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms"]
    label = "data: the host's label; others: GPU time of what was issued in the label" if on_gpu else "labels"
    steps = as_text(report["steps"], "rank", "step")
    table = build_table(steps[:MOST_ROWS], columns) + cut_note(steps, "step_metrics")
    html += details(f"Each step of each rank ({label})", table)
    sums = {phase: sum(filter(None, row.values())) for phase, row in parts.items()}
    longest = max(sums, key=lambda phase: sums[phase])
    told = f"{longest} {format_number(sums[longest], digits)} ms"
    return Section("Phases", html, folded=True, result=told)


def as_text(rows: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Return the rows with numbers that are names as text, so that tables do not add separators."""
    return [{**row, **{n: None if row[n] is None else str(row[n]) for n in names}} for row in rows]


def cut_note(rows: Sequence[Any], table: str, most: int = MOST_ROWS) -> Markup:
    """Return a note with the number of rows left out, if any."""
    if len(rows) <= most:
        return Markup("")
    return note(f"{most} of {len(rows)} rows are shown, tables/{table}.csv has all.")


MOST_STEPS = 24  # bars


def build_ranks(report: dict[str, Any], chosen: Sequence[int]) -> Section:
    """Return the mean step of each chosen rank, each step, and all numbers of them."""
    parts, mean = build_rank_parts(report), report["mean"]
    bars = {f"rank {rank}": parts[rank] for rank in chosen if rank in parts}
    columns = ["rank", "step_ms", "compute_pct", "comm_pct", "comm_exposed_pct", "comm_overlap_pct"]
    columns += ["straggler_pct", "bubble_pct", "data_wait_pct", "host_wait_pct", "idle_pct"]
    rows = as_text((row for row in report["ranks"] if row["rank"] in set(chosen)), "rank")
    rows.append({"rank": "all", **{k: v for k, v in mean.items() if k not in ("ranks", "steps")}})
    html = stacked_bars(bars, "ms of the mean recorded step", COLOURS) + build_table(rows, columns)
    html += note(
        f"Exposed {COMMUNICATION}: no compute hides it; it includes {LAST_RANK}. The hidden share is that of the "
        f"{COMMUNICATION}, all others are shares of the step."
    )
    if len(report["ranks"]) > 1 and mean.get("compute_imbalance") is not None:
        late = mean.get("slowest_rank")
        html += note(
            ("The ranks take turns: none is" if late is None else f"Rank {late} is")
            + " late by more than chance explains; the largest compute time of a rank is "
            f"{mean['compute_imbalance']:.3f} times the mean."
        )
    if mean.get("bubble_ideal_pct") is not None and mean.get("bubble_pct") is not None:
        measured, ideal = mean["bubble_pct"], mean["bubble_ideal_pct"]
        bubbles = {"seen, at least": {BUBBLE: measured}, "of equal stages": {BUBBLE: ideal}}
        html += subtitle("Bubble of the pipeline") + stacked_bars(bubbles, "% of the step", COLOURS)
        html += note(
            "Seen: exposed waiting in messages between stages; other collectives also wait for a late stage. "
            "Equal stages: (p - 1) / (m + p - 1) of forward and backward, for p stages and m micro-batches."
        )
    steps = {f"step {step}": row for step, row in build_step_parts(report).items()}
    if len(steps) > 1:
        html += subtitle("Each recorded step, mean over ranks")
        html += stacked_bars(dict(list(steps.items())[:MOST_STEPS]), "ms", COLOURS)
        html += cut_note(list(steps), "step_metrics", MOST_STEPS)
    told = format_range((sum(filter(None, row.values())) for row in steps.values()), "ms a step")
    return Section("Ranks and steps", html, folded=True, result=told)


MOST_COLLECTIVES = 20
HIDDEN = "hidden under compute"
PALETTE = COLOURS | {HIDDEN: COLOURS["compute"]}


def build_collectives(report: dict[str, Any], chosen: Sequence[int]) -> Section:
    """Build means per rank over all recorded steps; the rows of single ranks are folded."""
    title, rows = "Communication against computation", build_collective_summary(report)
    if not rows:
        return Section(title, nothing="no communication was recorded")
    bars = {}
    for row in rows[:MOST_COLLECTIVES]:
        label = row["collective"] if row["collective"] not in bars else f"{row['collective']}, {row['name']}"
        bars[label] = _split(row)
    columns: list[Column | str] = [
        *("collective", Column("name", "as the trace has it"), "ranks", "count", "bytes"),
        *("total_ms", "exposed_ms", "wait_ms", Column("came_last", "came last")),
    ]
    mean, html = report["mean"], stacked_bars(bars, "ms per rank, all recorded steps", PALETTE)
    # counts and bytes are the same on every rank except for odd groups: shown whole
    shown = [
        row | {key: None if row[key] is None else round(row[key]) for key in ("count", "bytes")}
        for row in rows[:MOST_COLLECTIVES]
    ]
    html += build_table(shown, columns) + cut_note(rows, "collective_stats", MOST_COLLECTIVES)
    hidden = (
        f"Communication runs {format_number(mean['comm_pct'], 1)} % of the step; compute hides "
        f"{format_number(mean['comm_overlap_pct'], 1)} % of it. "
        if mean.get("comm_overlap_pct") is not None and mean.get("comm_pct") is not None
        else ""
    )
    html += note(
        f"{hidden}Means per rank. A collective ends on all ranks together: wait is the time above the shortest call of "
        "any rank, and the rank with the shortest call came last, which tells no cause. '-': calls of ranks cannot be "
        "matched, or the trace does not tell."
    )
    single = [
        row | {"collective": describe_collective(row.get("collective"), row.get("axis"))}
        for row in as_text((row for row in report["collectives"] if row["rank"] in set(chosen)), "rank")
    ]
    ranks = ["rank", "collective", "count", "bytes", "total_ms", "exposed_ms", "wait_ms", "arrived_last"]
    table = build_table(single[:MOST_ROWS], ranks) + cut_note(single, "collective_stats")
    html += details("Rank by rank", table)
    pct = mean.get("comm_overlap_pct")
    told = "" if pct is None else f"{format_number(pct, 0)} % of it hidden"
    return Section(title, html, folded=True, result=told)


def _split(row: dict[str, Any]) -> dict[str, float | None]:
    """Split the time in a collective: hidden, exposed transfer, exposed waiting."""
    total, exposed, waiting = row["total_ms"], row["exposed_ms"], row["exposed_wait_ms"]
    if total is None or exposed is None:
        return {HIDDEN: None}
    return {
        HIDDEN: max(total - exposed, 0.0),
        "communication": exposed - (waiting or 0.0),
        "waiting for the last rank": waiting,
    }


MOST_KERNELS = 20
LONGEST_NAME = 120
SHARE_OF_EVENTS, COPY_RATE = Column("pct", "of GPU event time", "%", 1), Column("gbps", "rate", "GB/s")
OF_TYPE = {"compute": "compute", "comm": "communication", "copy": "copies"}
IDLE_SHARES = [f"{name}_pct" for name in IDLE_PARTS]


def build_device_sections(report: dict[str, Any]) -> Iterator[Section]:
    """Build the sections that need events of a GPU."""
    for title, noun, build in (("Kernels", "kernel", _build_kernels), ("Copies", "copy", _build_copies)):
        if report.get(title.lower()):
            count = len({row["name" if title == "Kernels" else "kind"] for row in report[title.lower()]})
            told = format_count(count, "kind" if title == "Copies" else "name")
            yield Section(title, build(report), folded=True, result=told)
        else:
            why = "CPU traces hold no GPU events" if report["source"] == "cpu" else f"no {noun} was recorded"
            yield Section(title, nothing=why)


def _build_kernels(report: dict[str, Any]) -> Markup:
    """Return the distribution of durations, and the kernels with most time."""
    found = report.get("durations") or {}
    counts = {name: found[key] for key, name in OF_TYPE.items() if found.get(key)}
    html = histogram(found.get("edges_us") or [], counts, "duration of a GPU event, us", "events", COLOURS)
    short = Column("short_kernel_pct", "shorter than 10 us", "%")
    html += build_table([report["mean"]], ["kernels_per_step", "kernel_us_p50", short])
    rows = [
        row | {"name": shorten(row["name"], LONGEST_NAME)}
        for row in build_kernel_summary(report, MOST_KERNELS)
    ]
    columns: list[Column | str] = ["name", "type", "count", "sum_ms", SHARE_OF_EVENTS]
    html += subtitle("Kernels with most time")
    html += build_table(rows, [*columns, "mean_us", "p50_us", "p95_us", "max_us"])
    return html + note(
        f"The {len(rows)} names with most time, all ranks together over the whole recording; p50 and p95 are means of "
        "the ranks' own. tables/kernel_stats.csv has all, rank by rank."
    )


def _build_copies(report: dict[str, Any]) -> Markup:
    """Build bandwidths: bytes over time."""
    table = build_table(build_copy_summary(report), ["kind", "count", "bytes", "total_ms", COPY_RATE])
    return table + note("All ranks together, bytes over time. HtoD: from the host to the device.")


def build_idle(report: dict[str, Any]) -> Section:
    """Build the causes of waiting: in the step as partitioned here, and per stream as HTA defines it."""
    mean = report["mean"]
    data, host, launch, *others = (mean.get(key) for key in IDLE_SHARES)
    bar = {DATA: data, HOST: host, LAUNCH: launch, IDLE: sum_known(others)}
    html = stacked_bars({"idle": bar}, "% of the step", COLOURS)
    told = format_range([mean.get("idle_pct")], "% of the step", 0)
    if report["source"] == "cpu":
        html += note(
            "Neither an operator nor communication ran; what is not data is the host: Python, and waiting."
        )
        return Section("Idle time", html, folded=True, result=told)
    html += build_table([mean], IDLE_SHARES) + note(
        "Nothing ran on any stream. Data: under the host's label of data loading. Host: until the host launched the "
        "next event. Launch: from there until it started. Kernel: gaps below 30 us between queued events."
    )
    if rows := build_idle_summary(report):
        html += subtitle("Per stream, by the definition of Holistic Trace Analysis")
        html += build_table(rows, ["stream", "ranks", "host_wait_ms", "kernel_wait_ms", "other_ms"])
        html += note(
            "Gaps on one stream over the whole recording, also while another stream was busy; mean over ranks."
        )
    return Section("Idle time", html, folded=True, result=told)


def shorten(text: str, most: int) -> str:
    """Return at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"

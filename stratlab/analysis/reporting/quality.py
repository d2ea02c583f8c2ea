"""What a reader must know about the traces before believing the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.reporting.run_facts import RunFacts
from stratlab.run_directory.files import is_alive
from stratlab.traces.discover import Finding, Manifest

RUNNING = "the run has not ended"
MOST_NAMED = 8  # missing ranks with a line of their own


def keep_one_source(ranks: Sequence[RankAnalysis]) -> tuple[list[RankAnalysis], list[Finding]]:
    """GPU time and host time are never mixed, nor steps and whole recordings: with a GPU on any rank, ranks without one
    are left out, and with steps on any of these, ranks without."""
    on_one, findings = _keep(
        ranks,
        lambda rank: rank.source == "gpu",
        "holds no GPU event, unlike the traces of other ranks [SL-rank-no-gpu]",
    )
    reason = (
        "has neither '## Training Step i ##' nor 'ProfilerStep#i', unlike the traces of other ranks "
        "[SL-rank-no-steps]"
    )
    kept, more = _keep(on_one, lambda rank: rank.steps_from != "recording", reason)
    return kept, findings + more


def _keep(
    ranks: Sequence[RankAnalysis], is_better: Callable[[RankAnalysis], bool], reason: str
) -> tuple[list[RankAnalysis], list[Finding]]:
    """The better ones if there are any, else all."""
    if not any(map(is_better, ranks)):
        return list(ranks), []
    left_out = [Finding("skipped", reason, r.file.name, r.rank) for r in ranks if not is_better(r)]
    return [rank for rank in ranks if is_better(rank)], left_out


def find_gaps(
    ranks: Sequence[RankAnalysis], facts: RunFacts, manifest: Manifest | None, named: set[int | None]
) -> list[Finding]:
    """Missing ranks and steps, and a GPU that left no mark. `named`: ranks that another finding explains."""
    findings = []
    present = {rank.rank for rank in ranks}
    missing = sorted(set(range(facts.world_size or 0)) - present - named)
    if len(missing) <= MOST_NAMED:
        why = "has no trace, the means are over the other ranks [SL-rank-no-trace]"
        findings += [Finding("noted", why, rank=rank) for rank in missing]
    else:
        why = (
            f"ranks {say_ranks(missing)} of {facts.world_size} have no trace, the means are over the others "
            "[SL-ranks-no-trace]"
        )
        findings.append(Finding("noted", why))
    if facts.origin["finished"] is False:  # None: foreign traces do not tell
        why = RUNNING if is_alive(facts.folder) else "the run did not finish"
        findings.append(Finding("noted", f"is missing: {why} [SL-summary-missing]", "summary.json"))
    if ranks[0].source == "cpu" and facts.origin["device_type"] not in (None, "cpu"):
        device = facts.origin["device_type"]
        findings.append(
            Finding("noted", f"the run used {device}, but its traces hold no GPU event [SL-gpu-unseen]")
        )
    steps = {rank.rank: [row.step for row in rank.rows] for rank in ranks}
    longest = max(steps.values(), key=len)
    for rank in ranks:
        if steps[rank.rank] != longest:
            reason = (
                f"holds the steps {_list(steps[rank.rank])}, another rank {_list(longest)} [SL-steps-differ]"
            )
            findings.append(Finding("noted", reason, rank.file.name, rank.rank))
    if manifest and manifest.steps > len(longest):
        findings.append(
            Finding(
                "noted",
                f"{len(longest)} of {manifest.steps} profiled steps are in the traces [SL-steps-lost]",
            )
        )
    return findings


def say_ranks(ranks: Sequence[int]) -> str:
    """`1-3, 7`; `ranks` ascend."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _list(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"

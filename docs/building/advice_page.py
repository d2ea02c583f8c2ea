"""Every rule of advice with its thresholds, from the table of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stratlab.analysis.advice_rules import RULES

END = """
R12 marks doubtful numbers. Except for `slowdown`, it lowers the severity of all other rules by one. R5 and `stratlab
compare` name a late rank by the same [rule](../decisions/traces.md#a-rank-is-late-beyond-chance).

**The gain** (`at_most_ms` in `report.json`) is an upper bound, as if the whole part vanished. Bounds of several rules
overlap and do not add up.

* R1, R2: exposed transfer. R3: waiting for the host and launching. R4: waiting for data. R9: exposed copies. R10: the
  optimizer phase.
* R5: waiting for the last rank, or the compute by which the slowest rank exceeds the mean. R6: the pipeline bubble
  above its ideal, or the whole bubble.
* Other rules: unknown (null).

Values that `report.json` does not have under the same name:

| value | meaning |
|---|---|
| `transfer_pct` | exposed communication without waiting for the last rank (`straggler_pct`) and pipeline bubble |
| `launching_pct` | `host_wait_pct` plus `launch_wait_pct` |
| `data_pct` | `data_wait_pct`; on a CPU the share of the data label |
| `optimizer_pct` | `optimizer_ms` as a share of the step |
| `bubble_over_ideal`, `bubble_excess_pct` | `bubble_pct` divided by `bubble_ideal_pct`; their difference |
| `memory_pct` | largest `peak_allocated_gib` of a rank, as a share of the device memory in the trace's head |
| `held_back_pct` | memory reserved but never allocated at the same time, as a share of the reserved memory |
| `top_kernel_pct` | the longest-running compute kernel, as a share of the compute kernels in `report.json` |
| `imbalance_of_step_pct` | `compute_pct` times (`compute_imbalance` - 1) |
| `missing_ranks` | ranks without a usable trace |
| `slowdown` | `host_step_ms` / the run's `step_time_ms_p50`; unknown if the recording counts as one step |
"""


def write_advice(repository: Path) -> str:
    """Return Markdown with a row per way in which a rule fires; `repository` is not read."""
    parts = [
        "# Rules of advice\n",
        "Each rule of [`stratlab analyze`](../analysis.md#recommendations) has a fixed threshold, generated from "
        "`stratlab/analysis/advice_rules.py`. Several rows of one rule are several ways to trigger it.\n",
        "| rule | fires when | silent on a CPU |",
        "|---|---|---|",
    ]
    for rule in sorted(RULES, key=lambda rule: int(rule.id[1:])):
        fires = " and ".join(map(_describe_condition, rule.when))
        parts.append(f"| {rule.id} | {fires} | {'yes' if rule.gpu_only else ''} |")
    return "\n".join(parts) + "\n" + END


def _describe_condition(condition: tuple[str, str, Any]) -> str:
    name, sign, other = condition
    return f"`{name}` {sign} {f'{other:g}' if isinstance(other, int | float) else other}"

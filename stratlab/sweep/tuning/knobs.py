"""Which knobs a strategy has, and what is wrong with those that a sweep's file wants to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from stratlab.sweep.cannot_start import cannot_start
from stratlab.sweep.definition import STRATEGY, Sweep
from stratlab.tables.strategies import STRATEGIES

ROUNDING = "reduce_dtype"
"""The one knob that is not tried: another type of the reduction is another rounding, and runs with it are no longer
comparable with the others."""


def find_strategy(chart: Path) -> str:
    """The strategy that a chart runs; "" where its values name none."""
    content = yaml.safe_load((chart / "values.yaml").read_text()) or {}
    return str((content.get("run") or {}).get("config", {}).get("strategy") or "")


def list_knobs(strategy: str) -> list[str]:
    """Those that may be tried, of the table of strategies."""
    return [name for name in STRATEGIES.get(strategy, {}).get("knobs", ()) if name != ROUNDING]


def check_knobs(sweep: Sweep, folder: Path) -> None:
    """That each knob is one of the strategy that it is given for.

    Args:
        folder: of the sweep's file.

    Raises:
        UserError: with one line per mistake.
    """
    assert sweep.tune
    charts = {str(name): folder / sweep.charts / str(name) for name in sweep.matrix[STRATEGY]}
    strategies = {name: find_strategy(chart) for name, chart in charts.items() if chart.is_dir()}
    problems = [*_wrong_knobs(sweep, strategies)]
    if problems:
        raise cannot_start(problems)


def _wrong_knobs(sweep: Sweep, strategies: Mapping[str, str]) -> Iterator[str]:
    assert sweep.tune
    for chart, knobs in sweep.tune.knobs.items():
        strategy = strategies.get(chart, "")
        if not strategy:
            continue  # a chart that is not there, or not in the matrix, is told elsewhere
        own = list_knobs(strategy)
        allowed = f"it has {', '.join(own)}" if own else "it has none: leave it out"
        for name in knobs:
            if name == ROUNDING:
                yield (
                    f"tune: {chart}: {name} is not tried: it changes the rounding, and so what is compared; set "
                    f"run.config.{name} for all of them, or leave it out [SL-tune-rounding]"
                )
            elif name not in own:
                yield f"tune: {chart}: {name} is no knob of {strategy}, {allowed} [SL-tune-no-knob]"

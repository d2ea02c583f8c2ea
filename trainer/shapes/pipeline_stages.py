"""How a pipeline cuts a model's layers."""

from __future__ import annotations

VIRTUAL_STAGES = {"1f1b": 1, "gpipe": 1, "interleaved1f1b": 2}
"""Schedule -> stages of the pipeline that one process holds."""


def split_layers(layers: int, stages: int) -> list[range]:
    """The layers of each stage; the first ones get those that are left over, because the last one has the head."""
    base, extra = divmod(layers, stages)
    ends = [base * (stage + 1) + min(stage + 1, extra) for stage in range(stages)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]

"""Every strategy, one row each: all that the lab must know of it besides how its engine is built.

A new one takes a row here, a file in trainer/strategies if no present one will do, and a chart (README). No column has
a default, so that what is forgotten is an error at import. Who reads a column is said beside it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

CHART_NAME = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
"""Of charts/new_chart.py."""
ND_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Of the strategy nd, outermost first: what communicates most has the closest ranks. ep cuts across the last three."""
WIRE = ("", "none", "all-reduce", "reduces each micro-batch", "gathers", "gathers in replicas")
"""Rows of the table of bytes on the wire (measuring/wire_formulas.py); "" = counted, without a formula."""


@dataclass(frozen=True)
class Held:
    """What a rank holds of the state: parameters, gradients, optimizer (`stratlab compare` measures against it)."""

    divided: tuple[str, ...]
    """Kinds of which a rank holds its share alone."""
    over: tuple[str, ...] = ("dp_shard",)
    """The axes whose ranks share it."""
    copies: bool = False
    """Beside fp32 parameters it keeps an fp32 copy of each rank's share (DeepSpeed's optimizers)."""
    at_most: tuple[str, ...] = ()
    """Kinds of which it may hold less when they are counted, between the backward pass and the update."""
    again_in_node: str = ""
    """The part of the setting `zeropp` with which a node's ranks share all parameters once more."""
    but: Mapping[str, str] = field(default_factory=dict)
    """Where it holds more, by kind: the usual reason."""


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """One strategy."""

    file: str
    """In trainer/strategies: the module whose `build` makes its engine."""
    axes: tuple[str, ...]
    """Of the mesh that it may use (layout/mesh.py). The first one takes the processes that nobody claimed; where nobody
    claims any, dp_shard of two axes takes the processes of one node: the fast links."""
    builds_empty: Literal["nobody", "others", "everybody"]
    """Whose model comes without memory (strategies): the weights arrive in shards from rank 0, or each rank reads its
    own part."""
    has_bf16_native: bool
    """Has a bf16 of its own besides that of all (settings/precision.py, config_rules.py)."""
    offload: tuple[str, ...]
    """What may be kept in host memory besides `none` (config_rules.py): nothing where a process holds the whole model
    anyway."""
    knobs: tuple[str, ...]
    """Settings that it can be tuned by (settings/knob_table.py)."""
    defaults: Mapping[str, Any]
    """Knobs that have another value here where nobody says one (settings/fields.py): what makes a strategy of a present
    file another one."""
    reduce_bucket_mib: int
    """Gradients that are reduced together unless the setting of this name says otherwise; 0 = no buckets."""
    by_nodes: bool
    """How many ranks share a node decides who holds what, where no degree is given (counting/operations.py)."""
    deepspeed_stage: int
    """0 = not DeepSpeed's (deepspeed_rules.py, engines/deepspeed_config.py)."""
    wire: str
    """One of WIRE."""
    holds: Held
    """Of the state; for the comparison."""
    holds_whole_model: bool
    """Each process has all parameters, gradients and state: a model that does not fit is refused (layout/fit.py)."""
    gathers: bool
    """Parameters are gathered layer by layer; this and the next three are for the advice (stratlab/analysis/advice)."""
    compiles: bool
    """The advice may propose compiled blocks, whatever the model and the layout."""
    holds_less: str
    """The strategy to try for less state per rank; "" = none."""
    sends_less: str
    """The one to try for less communication, at more state per rank; "" = none."""
    climbs_to: str
    """Where the ladder goes that holds less and is of the same make (launch/ladder.py); "" = nowhere."""


KINDS = ("parameters", "gradients", "optimizer")
_CROSSING = {
    "gradients": "tensors that cross the border of two shards are held whole: it shows in small models"
}
_PERSISTENT = {"parameters": "parameters of fewer elements than persistent_elements stay whole on every rank"}
_STAGES = dict.fromkeys(KINDS, "stages of a pipeline are not equally large, and norms are not split by tp")
OF_ZERO = {
    # gradients are whole until they are reduced; what is left at the update is the rank's share
    1: Held(("optimizer",), copies=True, at_most=("gradients",)),
    2: Held(("gradients", "optimizer"), copies=True, but=_CROSSING),
    3: Held(KINDS, copies=True, but=_PERSISTENT),
}
FULLY_SHARD = ("accumulate", "reshard_after_forward", "prefetch_blocks", "reduce_dtype")
DEEPSPEED = ("reduce_bucket_mib", "overlap_reduction", "reduce_dtype")
OF_STAGE = {
    **dict.fromkeys((1, 2), ("gather_bucket_mib",)),
    3: ("reshard_after_forward", "prefetch_blocks", "persistent_elements"),
}


def _zero(stage: int, **more: Any) -> StrategyRow:
    """DeepSpeed's: all in one file, apart by their stage."""
    shared: dict[str, Any] = {
        "file": "zero",
        "axes": ("dp_shard",),
        "builds_empty": "others" if stage == 3 else "nobody",
        "has_bf16_native": True,
        "offload": ("optimizer", "all") if stage == 3 else ("optimizer",),
        "knobs": (*DEEPSPEED, *OF_STAGE[stage]),
        "defaults": {},
        "reduce_bucket_mib": 192,
        "by_nodes": False,
        "deepspeed_stage": stage,
        "holds": OF_ZERO[stage],
        "holds_whole_model": False,
        "gathers": stage == 3,
        "compiles": stage != 3,
    }
    return StrategyRow(**shared | more)


def _whole(file: str, axes: tuple[str, ...], wire: str, holds_less: str, **more: Any) -> StrategyRow:
    """Every process holds all of it."""
    return StrategyRow(
        file=file,
        axes=axes,
        builds_empty="nobody",
        has_bf16_native=False,
        offload=(),
        defaults={},
        by_nodes=False,
        deepspeed_stage=0,
        wire=wire,
        holds=Held(()),
        holds_whole_model=True,
        gathers=False,
        compiles=True,
        holds_less=holds_less,
        sends_less="",
        **more,
    )


def _sharded(
    file: str, axes: tuple[str, ...], wire: str, holds_less: str, sends_less: str, **defaults: Any
) -> StrategyRow:
    """PyTorch's fully_shard; `defaults` as reshard_after_forward="off"."""
    return StrategyRow(
        file=file,
        axes=axes,
        builds_empty="others",
        has_bf16_native=False,
        offload=("all",),
        knobs=FULLY_SHARD,
        defaults=defaults,
        reduce_bucket_mib=0,
        by_nodes=len(axes) > 1,
        deepspeed_stage=0,
        wire=wire,
        holds=Held(KINDS),
        holds_whole_model=False,
        gathers=True,
        compiles=True,
        holds_less=holds_less,
        sends_less=sends_less,
        climbs_to=holds_less,
    )


STRATEGIES: dict[str, StrategyRow] = {
    "single": _whole("single", (), "none", "", knobs=(), reduce_bucket_mib=0, climbs_to=""),
    "ddp": _whole(
        "ddp",
        ("dp_replicate",),
        "all-reduce",
        "zero1",
        knobs=("reduce_bucket_mib", "reduce_dtype", "static_graph"),
        reduce_bucket_mib=25,
        climbs_to="fsdp",
    ),
    "fsdp": _sharded("fsdp", ("dp_shard",), "gathers", "", "zero2"),
    "hsdp": _sharded("hsdp", ("dp_replicate", "dp_shard"), "gathers in replicas", "fsdp", ""),
    "zero1": _zero(1, wire="all-reduce", holds_less="zero2", sends_less="ddp", climbs_to="zero2"),
    "zero2": _zero(
        2, wire="reduces each micro-batch", holds_less="zero3", sends_less="zero1", climbs_to="zero3"
    ),
    "zero3": _zero(3, wire="gathers", holds_less="", sends_less="zero2", climbs_to=""),
    "zeropp": _zero(
        3,
        by_nodes=True,
        wire="",
        holds=replace(OF_ZERO[3], again_in_node="hpz"),
        holds_less="",
        sends_less="zero2",
        climbs_to="zero3",
    ),
    "nd": StrategyRow(
        file="nd",
        axes=ND_AXES,
        builds_empty="everybody",
        has_bf16_native=False,
        offload=(),
        knobs=FULLY_SHARD,
        defaults={},
        reduce_bucket_mib=0,
        by_nodes=False,
        deepspeed_stage=0,
        wire="",
        holds=Held(KINDS, ("pp", "dp_shard", "cp", "tp"), but=_STAGES),
        holds_whole_model=False,
        gathers=False,
        compiles=False,
        holds_less="",
        sends_less="",
        climbs_to="",
    ),
}


for _name, _row in STRATEGIES.items():
    assert re.fullmatch(CHART_NAME, _name), f"{_name}: is named like its chart, {CHART_NAME}"
    assert set(_row.defaults) <= set(_row.knobs), f"{_name}: its defaults are of its knobs"
    assert _row.wire in WIRE, f"{_name}: wire={_row.wire!r}, expected one of {WIRE}"
    for _other in (_row.holds_less, _row.sends_less, _row.climbs_to):
        assert _other in ("", *STRATEGIES), f"{_name}: {_other} is no strategy"


def describe_for_tools() -> str:
    """JSON of the columns that stratlab reads, which may not import the trainer."""
    columns = ("gathers", "compiles", "by_nodes", "holds_less", "sends_less", "offload", "knobs", "holds")
    rows = {name: asdict(row) for name, row in STRATEGIES.items()}
    found = {name: {each: row[each] for each in columns} for name, row in rows.items()}
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":  # make schema
    Path(sys.argv[1]).write_text(describe_for_tools())

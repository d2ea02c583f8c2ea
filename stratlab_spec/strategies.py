"""Every strategy, one row each: everything about it except how its engine is built.

A new strategy needs a row here, a file in trainer/strategies unless an existing one serves, and a chart
(docs/developing.md). Columns lack defaults, so that a forgotten value is an error at import. A note next to each column
names its readers.

A column of the row lists the strategy's knobs. KNOBS holds the messages for strategies without a knob, and the
reasons for the defaults. Values left to the strategy (`auto`, 0) are decided here as well, and recorded in
config.json as `resolved.knobs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    pass


CHART_NAME = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
"""Of charts/new_chart.py."""
ND_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Axes of strategy nd, outermost first: the axis with most communication has the closest ranks. ep cuts across the
last three."""
WIRE = ("", "none", "all-reduce", "reduces each micro-batch", "gathers", "gathers in replicas")
"""Rows of the table of bytes on the wire (tests/trainer/wire_formulas.py); "" = counted, without a formula."""


@dataclass(frozen=True)
class Held:
    """A rank's part of the state: parameters, gradients, optimizer (`stratlab compare` measures against it)."""

    divided: tuple[str, ...]
    """Kinds of which a rank holds only its share."""
    over: tuple[str, ...] = ("dp_shard",)
    """The axes whose ranks share it."""
    copies: bool = False
    """It keeps an fp32 copy of each rank's share in addition to fp32 parameters (DeepSpeed's optimizers)."""
    at_most: tuple[str, ...] = ()
    """Kinds of which it may hold less when they are counted, between the backward pass and the update."""
    again_in_node: str = ""
    """The part of the setting `zeropp` with which a node's ranks share all parameters once more."""
    but: Mapping[str, str] = field(default_factory=dict)
    """The usual reason if it holds more, by kind."""


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """One strategy."""

    file: str
    """In trainer/strategies: the module whose `build` makes its engine."""
    axes: tuple[str, ...]
    """Axes of the mesh that it may use (stratlab_spec/layout/axes.py). The first one takes the unclaimed
    processes. If none are claimed, dp_shard of two axes takes the processes of one node: the fast links."""
    builds_empty: Literal["nobody", "others", "everybody"]
    """Ranks whose model comes without memory (strategies): the weights arrive in shards from rank 0, or each rank
    reads its own part."""
    has_bf16_native: bool
    """Has a bf16 of its own in addition to the common one (trainer/distributed/world.py, settings/rules.py)."""
    offload: tuple[str, ...]
    """Parts that may be kept in host memory, other than `none` (settings/rules.py); empty if a process holds the
    whole model anyway."""
    knobs: tuple[str, ...]
    """Settings that it can be tuned by (KNOBS)."""
    defaults: Mapping[str, Any]
    """Knobs with another default here (settings/fields.py): they make a strategy of an existing file another one."""
    reduce_bucket_mib: int
    """MiB of gradients that are reduced together by default; 0 = no buckets."""
    by_nodes: bool
    """The number of ranks per node decides the shares if the degrees are not set (trainer/memory_estimation)."""
    deepspeed_stage: int
    """0 = not DeepSpeed's (settings/library_rules.py, engines/deepspeed_config.py)."""
    wire: str
    """One of WIRE."""
    holds: Held
    """Its parts of the state; for the comparison."""
    holds_whole_model: bool
    """Each process has all parameters, gradients and state: a model that does not fit is refused (memory/fit.py)."""
    gathers: bool
    """Parameters are gathered layer by layer; this and the next three are for the advice (stratlab/analysis/advice)."""
    compiles: bool
    """The advice may propose compiled blocks with any model and layout."""
    holds_less: str
    """The strategy to try for less state per rank; "" = none."""
    sends_less: str
    """The one to try for less communication, at more state per rank; "" = none."""
    tried: int
    """Place in the order in which predict proposes strategies: the least communication comes first; equal places, by
    name."""
    why: str
    """Why it has this place."""
    page: tuple[str, str, str]
    """Sharded parts, collectives per step, when to use it: cells of its line in docs/strategies.md, which `make
    schema` writes; empty if presets have lines of their own."""
    collectives: Mapping[str, tuple[str, ...]]
    """Phase of a step -> its transfers of parameters and gradients, `inside` a group or node or `across` groups: the
    picture in docs/strategies.md. Empty for nd: its dims decide."""
    falls_back_to: str
    """The next rung of the ladder: it holds less and has the same make (trainer/launch/memory_limits.py); "" = none."""


KINDS = ("parameters", "gradients", "optimizer")
PHASES = ("forward", "backward", "update")
_CROSSING = {
    "gradients": "tensors that cross the border of two shards are held whole: it shows in small models"
}
_PERSISTENT = {"parameters": "parameters of fewer elements than persistent_elements stay whole on every rank"}
_STAGES = dict.fromkeys(KINDS, "stages of a pipeline are not equally large, and norms are not split by tp")
OF_ZERO = {
    # gradients are whole until they are reduced; the rank's share remains at the update
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
    """Return a row of DeepSpeed's: all in one file, distinguished by their stage."""
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
    """Return the parts when every process holds the whole state."""
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


def _sharded(axes: tuple[str, ...], wire: str, holds_less: str, sends_less: str, **more: Any) -> StrategyRow:
    """Return a row of PyTorch's fully_shard."""
    return StrategyRow(
        file="fsdp",
        axes=axes,
        builds_empty="others",
        has_bf16_native=False,
        offload=("all",),
        knobs=FULLY_SHARD,
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
        falls_back_to=holds_less,
        **{"defaults": {}, **more},
    )


STRATEGIES: dict[str, StrategyRow] = {
    "single": _whole(
        "single",
        (),
        "none",
        "",
        knobs=(),
        reduce_bucket_mib=0,
        tried=0,
        why="one GPU has nothing to send",
        collectives={},
        page=(
            "nothing, one process",
            "none",
            "the model fits one GPU; reference of all others",
        ),
        falls_back_to="",
    ),
    "ddp": _whole(
        "ddp",
        ("dp_replicate",),
        "all-reduce",
        "zero1",
        knobs=("reduce_bucket_mib", "reduce_dtype", "static_graph"),
        reduce_bucket_mib=25,
        tried=1,
        why="nothing else that divides the data sends less",
        collectives={"backward": ("all-reduce",)},
        page=(
            "nothing",
            "all-reduce of gradients, hidden by the backward pass",
            "model and optimizer state fit each GPU",
        ),
        falls_back_to="fsdp",
    ),
    "fsdp": _sharded(
        ("dp_shard",),
        "gathers",
        "",
        "zero2",
        tried=4,
        why="it sends as much as zero3, with less work on the host",
        collectives={"forward": ("all-gather",), "backward": ("all-gather", "reduce-scatter")},
        page=(
            "parameters, gradients, optimizer state (PyTorch `fully_shard`)",
            "two all-gathers and one reduce-scatter per block",
            "the model does not fit",
        ),
    ),
    "hsdp": _sharded(
        ("dp_replicate", "dp_shard"),
        "gathers in replicas",
        "fsdp",
        "",
        tried=6,
        why="it shares out all of the state, and gathers inside a group of ranks alone",
        collectives={
            "forward": ("all-gather inside",),
            "backward": ("all-gather inside", "reduce-scatter inside", "all-reduce across"),
        },
        page=(
            "as `fsdp` inside a group, replicated over groups",
            "as `fsdp`, and an all-reduce between groups",
            "many nodes, fast inside, slow between",
        ),
    ),
    "zero1": _zero(
        1,
        wire="all-reduce",
        holds_less="zero2",
        sends_less="ddp",
        tried=2,
        why="it holds less than ddp, but sends 1.5 times as much",
        collectives={"backward": ("all-reduce",), "update": ("all-gather",)},
        page=(
            "optimizer state (DeepSpeed)",
            "all-reduce of gradients, all-gather of parameters",
            "the optimizer state does not fit",
        ),
        falls_back_to="zero2",
    ),
    "zero2": _zero(
        2,
        wire="reduces each micro-batch",
        holds_less="zero3",
        sends_less="zero1",
        tried=3,
        why="it sends less than what gathers the parameters too",
        collectives={"backward": ("all-reduce",), "update": ("all-gather",)},
        page=(
            "gradients, optimizer state (DeepSpeed)",
            "all-reduce of whole buckets, all-gather of parameters",
            "the gradients do not fit either",
        ),
        falls_back_to="zero3",
    ),
    "zero3": _zero(
        3,
        wire="gathers",
        holds_less="",
        sends_less="zero2",
        tried=5,
        why="it shares out all of the state",
        collectives={"forward": ("all-gather",), "backward": ("all-gather", "reduce-scatter")},
        page=(
            "parameters, gradients, optimizer state (DeepSpeed)",
            "all-gathers per module, reduce-scatter",
            "the model does not fit, and you use DeepSpeed",
        ),
        falls_back_to="",
    ),
    "zeropp": _zero(
        3,
        by_nodes=True,
        wire="",
        holds=replace(OF_ZERO[3], again_in_node="hpz"),
        holds_less="",
        sends_less="zero2",
        tried=7,
        why="it shares out all of the state, and its backward gathers stay inside a node",
        collectives={"forward": ("all-gather",), "backward": ("all-gather inside", "reduce-scatter")},
        page=(
            "as `zero3`, with a second copy of the parameters per node (hpZ)",
            "as `zero3`, but only the first all-gather of a step leaves the node",
            "`zero3` on several nodes with slow links",
        ),
        falls_back_to="zero3",
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
        tried=8,
        why="it divides the model itself (docs/llm.md has the layouts)",
        collectives={},
        page=("", "", ""),
        falls_back_to="",
    ),
}


for _name, _row in STRATEGIES.items():
    assert re.fullmatch(CHART_NAME, _name), f"{_name}: is named like its chart, {CHART_NAME}"
    assert set(_row.defaults) <= set(_row.knobs), f"{_name}: its defaults are of its knobs"
    assert _row.wire in WIRE, f"{_name}: wire={_row.wire!r}, expected one of {WIRE}"
    for _other in (_row.holds_less, _row.sends_less, _row.falls_back_to):
        assert _other in ("", *STRATEGIES), f"{_name}: {_other} is no strategy"


GATHERING = tuple(name for name, row in STRATEGIES.items() if row.gathers)
"""Those that gather parameters layer by layer."""
COMPILING = tuple(name for name, row in STRATEGIES.items() if row.compiles)
"""Strategies whose blocks can be compiled with any model and layout."""


KNOBS: dict[str, str] = {
    # sharded: whole gradients of the model on every rank cost more than all that fully_shard has sharded; a pipeline
    # keeps them whole, since its stages reduce once, after the last of many micro-batches
    "accumulate": "single, ddp and zero1 hold whole gradients anyway, zero2, zero3 and zeropp shards",
    # on: each block is whole only while it computes, the reason to shard parameters at all; a pipeline keeps its own
    # for all micro-batches of a step, between which it would gather them again and again
    "reshard_after_forward": "nothing is gathered before the forward pass",
    # 1, torch's own: one block travels while another computes; more does not help if a block computes for longer
    # than it travels, and each takes its memory
    "prefetch_blocks": "no block is gathered",
    # ddp 25, torch's own; DeepSpeed's 192: its own 1.9 GiB, twice over with overlap_reduction, take more memory than
    # they save time, for a reduction of some 100 MiB has the full speed of the links already
    "reduce_bucket_mib": "fully_shard reduces the gradients of one block together, and single none",
    # 192, as for reduce_bucket_mib
    "gather_bucket_mib": "only zero1 and zero2 gather all weights after the update",
    # on, as ddp, fsdp, hsdp and nd do; it takes a second bucket
    "overlap_reduction": "their reductions always run beside the backward pass",
    # 100,000, DeepSpeed's own: for norms and biases a transfer takes longer than their memory is worth
    "persistent_elements": "only DeepSpeed's stage 3 can leave small parameters whole",
    # fp32: the recipe of bf16 promises reductions in fp32 (trainer/distributed/world.py)
    "reduce_dtype": "nothing is reduced",
    # off, torch's own: it saves the search for parameters without a gradient, which do not exist here
    "static_graph": "a switch of DistributedDataParallel",
}
"""Knob -> why the strategies that are without it are; above it the reason for its default."""

for _name, _row in STRATEGIES.items():
    assert not set(_row.knobs) - set(KNOBS), f"{_name}: {set(_row.knobs) - set(KNOBS)} are no knobs"

"""What a difference between two steps can come from: words and remedies, one row per cause.

The settings in the remedies exist: tests/stratlab/compare/explaining/test_sentence.py looks them up.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratlab.run_directory.step_parts import BUBBLE, COMPUTE, COPIES, DATA, HOST, IDLE, LAST_RANK

NOT_TRACED = "not_traced"
COLLECTIVES = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "all_to_all": "all-to-all",
    "send_recv": "send/receive",
    "": "communication",
    "unknown": "communication of an unknown kind",
}


@dataclass(frozen=True)
class Cause:
    """A cause.

    Attributes:
        name: for tables, as the cause of a longer step.
        more, less: what is said of its milliseconds; {what} is the collective.
        remedy: what to try.
    """

    name: str
    more: str
    less: str
    remedy: str


CAUSES: dict[str, Cause] = {
    "compute": Cause(
        "more compute",
        COMPUTE,
        f"less {COMPUTE}",
        "compare the kernels of both reports; run.config.compile=true, run.config.precision=bf16, and "
        "run.config.activation_checkpointing=none where memory allows",
    ),
    "more_communication": Cause(
        "slower link or more communication",
        "exposed {what} ({why})",
        "less exposed {what}",
        "send less or nearer: where memory allows a run.config.strategy that shards less (zero3 or fsdp, then zero2, "
        "then ddp), or hsdp with run.config.dp_shard = the devices of one node; run.config.precision=bf16",
    ),
    "less_overlap": Cause(
        "less overlap",
        "exposed {what} (less of it hidden behind compute)",
        "exposed {what} (more of it hidden behind compute)",
        "give it compute to hide behind: a larger run.config.micro_batch_size; check that nothing waits for a "
        "collective early",
    ),
    "straggler": Cause(
        LAST_RANK,
        LAST_RANK,
        f"less {LAST_RANK}",
        "look at the slow rank's device and host: clocks, temperature, other work, its share of the data",
    ),
    "copies": Cause(
        "copies between host and device",
        COPIES,
        f"less {COPIES}",
        "run.config.data_residence=device where the images fit; run.config.offload=none where the state does",
    ),
    "data": Cause(
        DATA,
        DATA,
        f"less {DATA}",
        "run.config.data_residence=device where the images fit, a cheaper run.config.augment, more CPU cores per rank",
    ),
    "host": Cause(
        "host-bound: the device waits for launches",
        HOST,
        f"less {HOST}",
        "look in the merged trace of the run at what its host does in the gaps",
    ),
    "idle": Cause(
        "other idle time of the device",
        IDLE,
        f"less {IDLE}",
        "look for gaps in the timeline of the run's own report",
    ),
    "bubble": Cause(
        BUBBLE,
        BUBBLE,
        f"less {BUBBLE}",
        "more micro-batches per step: a smaller run.config.micro_batch_size or a larger run.config.global_batch_size",
    ),
    NOT_TRACED: Cause(
        "not explained by the traced steps",
        "that the traced steps do not show",
        "that the traced steps do not show",
        "",
    ),
}
HOST_REMEDIES = {  # by the kind of most gaps (stratlab/analysis/measuring/gaps.py); else that of CAUSES
    "short": "launch less per sample: a larger run.config.micro_batch_size, run.config.compile=true",
    "first": "look at what the host does before the first event of a step: prepare samples ahead, or once",
    "label": "look at what the host does under {label}, where it leaves the device idle",
}
SLOW_LINK = (
    "check the link between the devices, its topology, and who else uses it; where it stays slow, hsdp with "
    "run.config.dp_shard = the devices of one node, or run.config.precision=bf16"
)
WHY_MORE = {"link": "the same bytes, slower", "bytes": "more bytes", "new": "", "": "more of it in total"}
SAME_BYTES = 0.05  # relative


def say_collective(name: str, axis: str = "") -> str:
    """`all-gather`, `all-gather over dp_shard`."""
    return COLLECTIVES.get(name, name.replace("_", "-")) + (
        f" over {axis}" if axis and axis != "unknown" else ""
    )

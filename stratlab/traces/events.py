"""What is read of an event of Kineto's JSON, and which events are which."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import msgspec

# A GPU event is known by its category, not by having a stream: Triton's CPU ops carry stream 0.
COPY_CATEGORIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
GPU_CATEGORIES = ("kernel", "Kernel", *COPY_CATEGORIES)
# Labels, operators and Python's stack, which are most of a trace and launch nothing themselves. Every other host event
# may be a launch: `cuda_runtime`, `hip_driver`, `xpu_runtime`, `privateuse1_runtime`, and those of devices to come.
OPERATOR_CATEGORIES = ("cpu_op", "Operator")
UNLINKED_CATEGORIES = (*OPERATOR_CATEGORIES, "python_function", "user_annotation", "gpu_user_annotation")
LAUNCH_CATEGORY = re.compile(r"_(runtime|driver)$|^Runtime$")
RECORD = "record_param_comms"  # torch's operator around a collective; its args say which

Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """What is read of an event's `args`."""

    correlation: Number = None
    device: Number = None
    stream: Number = None
    bytes: Number = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Number = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    in_elements: Number = msgspec.field(default=None, name="In msg nelems")
    out_elements: Number = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    allocated: Number = msgspec.field(default=None, name="Total Allocated")
    reserved: Number = msgspec.field(default=None, name="Total Reserved")
    device_type: Number = msgspec.field(default=None, name="Device Type")
    device_id: Number = msgspec.field(default=None, name="Device Id")
    connection: Number = msgspec.field(default=None, name="connection_id")  # this and the next: Ascend's
    task: Number = msgspec.field(default=None, name="Task Type")
    stream_id: Number = msgspec.field(default=None, name="Stream Id")


class Event(msgspec.Struct, gc=False):
    """One event; times in us."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float = 0
    dur: int | float | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: Args | None = None


class ExactTimes(msgspec.Struct, gc=False):
    """The times of an event as they are written; us."""

    ts: Decimal = Decimal(0)
    dur: Decimal | None = None


class ExactRest(msgspec.Struct):
    """As `Rest`."""

    traceEvents: list[ExactTimes]


class Rest(msgspec.Struct):
    """The end of a file: its last events and what stands behind them."""

    traceEvents: list[Event]
    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None


NO_ARGS = Args()
_SHORT = {"Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1}
ELEMENT_BYTES = _SHORT | {"Double": 8, "Long": 8}  # by the names that torch writes
# not strict: some writers put numbers into quotes
decode_event = msgspec.json.Decoder(Event, strict=False).decode
decode_events = msgspec.json.Decoder(list[Event], strict=False).decode
decode_rest = msgspec.json.Decoder(Rest, strict=False).decode
decode_exact = msgspec.json.Decoder(list[ExactTimes]).decode
decode_exact_rest = msgspec.json.Decoder(ExactRest).decode

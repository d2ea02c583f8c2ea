"""Conditions and settings that several rules share."""

from __future__ import annotations

from stratlab.analysis.advice.rule import Condition

CAN_DOUBLE: Condition = ("double_micro_batch", ">", 0)
CAN_HALVE: Condition = ("half_micro_batch", ">", 0)
LARGER_MICRO_BATCH = {"run.config.micro_batch_size": "{double_micro_batch}"}
SMALLER_MICRO_BATCH = {"run.config.micro_batch_size": "{half_micro_batch}"}
NO_OFFLOAD = {"run.config.offload": "none"}
OFFLOADS: Condition = ("offload", "in", ("optimizer", "all"))
COMPILES: tuple[Condition, ...] = (
    ("compile", "is", False),
    ("strategy", "in", ("single", "ddp", "fsdp", "hsdp", "zero1", "zero2")),
)

"""The rules R1 to R12 as data. Every value that they name: evidence.py; every setting: trainer/settings/config.py."""

from __future__ import annotations

from stratlab.analysis.advice.rulebook.group_rules import COMMUNICATION
from stratlab.analysis.advice.rulebook.host_rules import HOST
from stratlab.analysis.advice.rulebook.memory_rules import MEMORY
from stratlab.analysis.advice.rulebook.rule import Remedy, Rule
from stratlab.analysis.advice.rulebook.thresholds import ELSEWHERE, SLOWDOWN

LOWERED = "Read the other recommendations as hints: their severity is lowered by one."
CONFIDENCE = (
    Rule(
        "R12",
        (("unrecorded_launches", ">", 0),),
        "The device's activity was not recorded, {unrecorded_launches:.0f} launches and no kernels: this is host "
        "operator time",
        "doubts",
        "high",
        (
            Remedy(
                "Record it: torch.profiler with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (XPU, MTIA, "
                "PrivateUse1), while no other profiler holds the device. " + LOWERED
            ),
        ),
        evidence=("traced_steps", "traced_ranks"),
        doubtful=True,
    ),
    Rule(
        "R12",
        (("source", "is", "cpu"), ("unrecorded_launches", "<", 1)),
        "These are traces of a CPU: host operator time, which says nothing about GPUs",
        "doubts",
        "medium",
        (Remedy("Record on the GPUs in question. " + LOWERED),),
        evidence=("traced_steps", "traced_ranks"),
        doubtful=True,
    ),
    Rule(
        "R12",
        (("missing_ranks", ">", 0),),
        "{missing_ranks:.0f} of {world_size:.0f} ranks have no usable trace",
        "doubts",
        "medium",
        (
            Remedy(
                "The slowest rank may be among them; the section on quality says why they are missing. "
                + LOWERED
            ),
        ),
        doubtful=True,
    ),
    Rule(
        "R12",
        (("traced_steps", "<", 2),),
        "Only {traced_steps:.0f} step was recorded",
        "doubts",
        "medium",
        (
            Remedy(
                "Record three or more, active=3 of torch.profiler.schedule, with a call of step() after each. "
                + LOWERED,
                when=(ELSEWHERE,),
            ),
            Remedy("Record three or more. " + LOWERED, {"run.config.profile_steps": "3"}),
        ),
        doubtful=True,
    ),
    Rule(
        "R12",
        (("slowdown", ">", SLOWDOWN),),
        "A recorded step is {slowdown:.2f} times as long as one that is not recorded",
        "doubts",
        "low",
        (
            Remedy(
                "The profiler itself costs host time, so that waiting for the host is overstated. Allocations need "
                "not be recorded.",
                {"run.config.profile_memory": "false"},
                (("profile_memory", "is", True),),
            ),
            Remedy("The profiler itself costs host time, so that waiting for the host is overstated."),
        ),
        evidence=("step_ms", "step_time_ms_p50"),
    ),
)

RULES = (*COMMUNICATION, *HOST, *MEMORY, *CONFIDENCE)

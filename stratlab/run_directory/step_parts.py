"""What the parts of a step are called: on a run's page, on a comparison's, in sentences, on GPUs and on CPUs."""

from __future__ import annotations

COMPUTE = "compute"
COMMUNICATION = "communication"
LAST_RANK = "waiting for the last rank"
COPIES = "copies"
BUBBLE = "pipeline bubble"
DATA = "waiting for data"
HOST = "waiting for the host"
LAUNCH = "launching"
IDLE = "other idle"
OF_PART = {  # of `parts` in analysis/report.json
    "compute": COMPUTE,
    "comm": COMMUNICATION,
    "straggler": LAST_RANK,
    "copy": COPIES,
    "bubble": BUBBLE,
    "data": DATA,
    "host": HOST,
    "launch": LAUNCH,
    "kernel_wait": IDLE,
    "other_idle": IDLE,
}
COLOURS = {  # in the order of bars; places in the palette, the same in all charts; 13 is 5, lighter
    COMPUTE: 0,
    COMMUNICATION: 1,
    LAST_RANK: 3,
    COPIES: 2,
    BUBBLE: 6,
    DATA: 4,
    HOST: 5,
    LAUNCH: 13,
    IDLE: 7,
}
ON_A_CPU = "On a CPU compute is the time of operators, and waiting for the host is Python, and waiting."

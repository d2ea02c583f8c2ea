"""The faults F1 to F30, and the tests that inject each of them. A test may lie anywhere in tests/.

A test tells its figures with pytest's `record_property`, by the names of FIGURES.
"""

from __future__ import annotations

from dataclasses import dataclass

FIGURES = {
    "seconds_to_recover": "seconds from the fault to the next step, or to the run's end where it must end",
    "steps_lost": "steps that had to be done again, or were never done",
    "points_lost": "numbers of metrics.jsonl that MLflow does not hold in the end",
    "points_doubled": "numbers that MLflow holds more often than metrics.jsonl",
}


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        number: F1 ... F30.
        what: happens.
        injected: by which means.
        must: be the outcome.
        tests: paths or node ids, as pytest takes them, below tests/.
        stand_in: what stands here for a device or a cluster of several nodes; empty where nothing does.
    """

    number: str
    what: str
    injected: str
    must: str
    tests: tuple[str, ...]
    stand_in: str = ""


LAUNCHER = "trainer/ranks/test_launcher.py::"
STORE = "trainer/checkpoint/ranks/test_store.py::"
FULL = "trainer/ranks/test_full_volume.py::"
SENDER = "trainer/processes/test_sender.py::"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "F1", "a rank is killed", "kill -9, real launcher, 2 ranks",
        "the attempt ends with 137 at once, the next one goes on from the newest checkpoint",
        ("faults/test_pods_lost.py::test_a_rank_is_killed",),
    ),
    Fault(
        "F2", "the same fault at every start", "a ledger of three starts, real launcher", "given up with 14",
        (LAUNCHER + "test_a_run_that_gets_nowhere_is_given_up_with_a_final_code",),
    ),
    Fault(
        "F4", "a pod is lost", "kill -9 of launcher and rank of the second of two pods, back after 5 s",
        "both pods meet again, the run goes on, losses as if nothing had been",
        ("faults/test_pods_lost.py::test_a_pod_is_lost[1]",), "two launchers on one machine",
    ),
    Fault(
        "F5", "the pod of the rendezvous is lost", "the same of the first pod", "as F4",
        ("faults/test_pods_lost.py::test_a_pod_is_lost[0]",), "two launchers on one machine",
    ),
    Fault(
        "F8", "a checkpoint is damaged", "each file cut, flipped, emptied, taken away", "found; the older one is taken",
        (
            "trainer/checkpoint/test_folder.py",
            STORE + "test_a_crash_anywhere_costs_at_most_the_newest_checkpoint",
            STORE + "test_a_broken_one_is_reported_in_the_metrics",
        ),
    ),
    Fault(
        "F9", "the volume is full when a checkpoint is written", "a file system of 1 MB",
        "the first is left out, the second ends the run with 13, older ones are whole",
        (FULL + "test_a_checkpoint_that_does_not_fit_is_left_out_and_the_next_ends_the_run",),
    ),
    Fault(
        "F10", "the volume is full when a trace or a metric is written", "a file system of 256 kB, or filled meanwhile",
        "the trace is dropped and named, the run succeeds",
        (
            FULL + "test_a_trace_that_does_not_fit_is_dropped_and_the_run_succeeds",
            FULL + "test_a_volume_that_fills_up_meanwhile_costs_no_finished_run",
        ),
    ),
    Fault(
        "F11", "MLflow is away from the start", "a port where nobody listens",
        "the run trains; the server gets all later",
        ("faults/test_mlflow_outage.py::test_a_server_that_comes_late",),
    ),
    Fault(
        "F12", "MLflow is away for ten minutes", "kill -9 of the real server, ten minutes, the server again",
        "no point lost, none doubled, no call of the loop takes 50 ms",
        (
            SENDER + "test_a_server_killed_in_the_middle_of_a_run_costs_nothing",
            "faults/test_mlflow_outage.py::test_ten_minutes_without_a_server",
        ),
    ),
    Fault(
        "F13", "MLflow is slow or refuses", "a server that waits 5 s, answers 500, 403, 429",
        "the loop does not notice; a refusal is told with the server's words",
        (
            "faults/test_mlflow_outage.py::test_a_server_that_misbehaves",
            SENDER + "test_a_refusal_is_told_with_the_server_s_words",
        ),
    ),
    Fault(
        "F17", "traces are damaged", "420 corruptions of one set", "named and left out, the rest is analysed",
        ("stratlab/traces/processes/test_corruptions.py",),
    ),
    Fault(
        "F18", "HTA fails", "each of its analyses raises, or its process ends",
        "a status for each, the others are there",
        ("stratlab/analysis/hta/test_status.py",),
    ),
    Fault(
        "F19", "the custom resource fails, is deleted, never starts", "an API server that answers so",
        "the waiter ends with the right code, what is there is analysed", ("stratlab/wait",),
        "a stand-in of the API server",
    ),
    Fault(
        "F20", "the API server breaks off", "410, 429, 500, cut connections", "the watch goes on, nothing is missed",
        ("stratlab/cluster",), "a stand-in of the API server",
    ),
    Fault(
        "F21", "no operator", "a resource that never gets a status", "`stratlab watch` says so", ("stratlab/watch",),
        "a stand-in of the API server",
    ),
    Fault(
        "F22", "a running release is upgraded", "helm template before and after", "refused where settings differ",
        (
            "charts/test_workloads.py::test_an_upgrade_would_see_another_setting",
            "charts/test_workloads.py::test_an_upgrade_may_change_what_is_no_setting_of_the_run",
        ), "the chart's own rule; on a cluster in the suite `cluster`",
    ),
    Fault(
        "F25", "a file of the data set is missing or cannot be read", "cut and removed while it trains",
        "ends with 3 and names the file; put back, every sample is seen once",
        (LAUNCHER + "test_the_last_sentence_is_that_of_the_rank_that_failed", "faults/test_lost_files.py"),
    ),
    Fault(
        "F27", "two releases write into one folder", "a second start while the first one trains",
        "the second is refused",
        ("faults/test_two_releases.py",),
    ),
    Fault(
        "F28", "the clock jumps", "an hour forth and back while it trains", "durations do not jump, the run succeeds",
        ("faults/test_clock.py",),
    ),
    Fault(
        "F29", "packets are lost between ranks", "all of them, for 5 s and for good, in own network namespaces",
        "short: goes on; long: ends with 134 after collective_timeout_s, and goes on",
        ("faults/test_network.py",), "two network namespaces",
    ),
    Fault(
        "F30", "the volume becomes read-only", "remounted while it trains",
        "training goes on; then ends with 13, no traceback",
        ("faults/test_read_only.py",), "a file system of its own in a mount namespace",
    ),
)  # fmt: skip

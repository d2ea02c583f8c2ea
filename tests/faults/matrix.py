"""The faults F1 to F30, and the tests that inject each of them. A test may lie anywhere in tests/.

A test tells its figures with pytest's `record_property`, by the names of FIGURES.
"""

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
FULL = "trainer/ranks/slow/test_worker.py::"
FILLS = "nightly/trainer/test_runs.py::"
ALONE = "faults/test_single_pods.py::"
SENDER = "trainer/processes/test_mlflow.py::"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "F1", "a rank is killed", "kill -9, real launcher, 2 ranks",
        "the attempt ends with 137 at once, the next one goes on from the newest checkpoint; losses as undisturbed",
        ("faults/test_pods_lost.py::test_a_rank_is_killed",),
    ),
    Fault(
        "F2", "the same fault at every start", "a ledger of three starts, real launcher", "given up with 14",
        (LAUNCHER + "test_a_run_that_gets_nowhere_is_given_up_with_a_final_code",),
    ),
    Fault(
        "F3", "a rank hangs", "asleep, with Python's lock, stopped, without data: 8 runs of 2 to 4 ranks; 4 healthy",
        "the watchdog names the right rank in 8 of 8, the others end with 134; no alarm in a healthy run",
        ("faults/test_hangs.py", "trainer/ranks/test_hangs.py"),
        "gloo and the watchdog's own stacks for NCCL's flight recorder",
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
        "F6", "a pod is told to stop", "SIGTERM at 20 random moments, twice each time, real launcher",
        "a checkpoint of the last step, 143 within the grace period, no step lost in 20 of 20",
        ("faults/test_sigterm.py::test_no_step_is_lost_whenever_the_signal_comes",),
    ),
    Fault(
        "F7", "killed while it saves", "one of two ranks ends before it hashes, before the commit, at it, at pruning",
        "the newest committed checkpoint is whole, and loads, after every one",
        (STORE + "test_a_crash_anywhere_costs_at_most_the_newest_checkpoint",),
    ),
    Fault(
        "F8", "a checkpoint is damaged", "each file cut, flipped, emptied, taken away", "found; the older one is taken",
        (
            "trainer/checkpoint/test_folder.py",
            STORE + "test_a_crash_anywhere_costs_at_most_the_newest_checkpoint",
            "trainer/checkpoint/ranks/test_store.py::test_damage_in_any_rank_s_share_is_found_by_all",
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
            FILLS + "test_a_trace_that_does_not_fit_is_dropped_and_the_run_succeeds",
            FILLS + "test_a_volume_that_fills_up_meanwhile_costs_no_finished_run",
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
            "faults/test_mlflow_outage.py::test_ten_minutes_without_a_server",
        ),
    ),
    Fault(
        "F13", "MLflow is slow or refuses", "a server that says nothing, or refuses",
        "the loop does not notice; a refusal is told with the server's words",
        (
            "faults/test_mlflow_outage.py::test_a_server_that_does_not_answer",
            SENDER + "test_a_refusal_is_told_with_the_server_s_words",
        ),
    ),
    Fault(
        "F14", "MLflow never comes back", "a run without its server, then `stratlab metrics replay`",
        "every point is there once; a second replay changes nothing",
        ("stratlab/metrics/slow/test_replay.py", "trainer/processes/test_mlflow.py"),
    ),
    Fault(
        "F15", "a loss is not finite", "one rank's, in 5 runs of 2 to 4 ranks; 3 clean runs",
        "ends with 12 within 20 steps, the right rank named in 5 of 5; nothing in a clean run",
        ("faults/test_not_finite.py", "trainer/metrics/ranks/test_training_failures.py"),
    ),
    Fault(
        "F16", "out of memory", "torch's own error in a rank; the kernel's count of a container's kills",
        "10 with what held it and what to try, or the next rung with the losses of a run that began there; 137 with "
        "limit and use",
        (
            "trainer/metrics/ranks/test_training_failures.py", "trainer/launch/test_memory_limits.py",
            "nightly/trainer/test_ladder.py",
        ), "torch's error planted for a full device, files for the kernel's killer; it kills in the suite `cluster`",
    ),
    Fault(
        "F17", "traces are damaged", "each kind of corruption of one set", "named and left out, the rest is analysed",
        ("stratlab/analysis/test_analyze.py::test_damaged_ranks_are_named_and_the_others_analysed",),
    ),
    Fault(
        "F18", "HTA fails", "each of its analyses raises, or its process ends",
        "a status for each, the others are there",
        ("stratlab/analysis/hta/test_hta_bridge.py",),
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
            "charts/longer/test_workloads.py::test_an_upgrade_would_see_another_setting",
            "charts/longer/test_workloads.py::test_an_upgrade_may_change_what_is_no_setting_of_the_run",
        ), "the chart's own rule; on a cluster in the suite `cluster`",
    ),
    Fault(
        "F23", "preempted", "SIGTERM to all pods of a run, which are started again", "as F6",
        ("faults/test_sigterm.py::test_a_run_that_was_preempted_loses_no_step",),
        "two launchers on one machine; a cluster's queue suspends and resumes in the suite `cluster`",
    ),
    Fault(
        "F24", "a rank is slow", "twice as slow in its data or its forward pass: 8 runs; 2 clean ones",
        "named within 20 steps with node and share in 8 of 8; nobody in a clean run",
        ("faults/test_stragglers.py", "trainer/ranks/slow/test_worker.py"),
    ),
    Fault(
        "F25", "a file of the data set is missing or cannot be read", "cut and removed while it trains",
        "ends with 3 and names the file; put back, every sample is seen once",
        (
            ALONE + "test_a_picture_that_is_gone_is_named_and_put_back_no_sample_is_missed_or_seen_twice",
        ),
    ),
    Fault(
        "F26", "goes on with other ranks or another strategy", "changed settings over a checkpoint",
        "the losses of the whole run within 1e-5, or refused with what would work",
        (
            "trainer/ranks/slow/test_resume.py::"
            "test_one_of_fsdp_ends_as_if_it_had_not_died_and_in_one_process_within_rounding",
            "trainer/launch/test_preflight.py::test_another_number_of_processes_needs_a_checkpoint",
            "trainer/ranks/slow/test_resume.py", "nightly/trainer/test_moves.py",
        ),
    ),
    Fault(
        "F27", "two releases write into one folder", "a second start while the first one trains",
        "the second is refused",
        (ALONE + "test_the_second_is_refused_and_the_first_goes_on",),
    ),
    Fault(
        "F28", "the clock jumps", "an hour forth and back while it trains", "durations do not jump, the run succeeds",
        (ALONE + "test_durations_do_not_jump_and_the_run_ends_well",),
    ),
    Fault(
        "F29", "packets are lost between ranks", "all of them, for 5 s and for good, in own network namespaces",
        "short: goes on; long: ends with 134 after collective_timeout_s, and goes on",
        ("faults/test_network.py",), "two network namespaces",
    ),
    Fault(
        "F30", "the volume becomes read-only", "by its kernel, for an error in it, with files of the run open",
        "training goes on; then ends with 13, no traceback; mended, it goes on from the newest checkpoint",
        ("faults/test_read_only.py",), "an ext4 file system in a file, and an error told to it",
    ),
)  # fmt: skip

"""A part of the trainer's tests inside the trainer's image: what a developer's machine has otherwise shows here."""

import pytest

from tests.cluster.in_image import run_in_image
from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

STATE = "tests/trainer/strategies/ranks/test_state.py"
FILES = "tests/trainer/strategies/ranks/test_state.py"
LAUNCHER = "tests/trainer/ranks/test_launcher.py"
CHOSEN = (
    "tests/images/inside/test_environment.py",
    # state of the strategies
    f"{STATE}::test_a_resumed_run_is_the_same_run_bitwise",
    f"{STATE}::test_a_file_with_code_is_refused_before_anybody_unpickles_it",
    f"{FILES}::test_of_getattr_only_the_stages_are_read",
    # checkpoints
    "tests/trainer/checkpoint/test_folder.py",
    "tests/trainer/checkpoint/test_store.py",
    "tests/trainer/checkpoint/ranks/test_store.py::test_random_numbers_and_skipped_steps_go_on_on_every_rank",
    "tests/trainer/checkpoint/ranks/test_store.py::test_a_full_disk_costs_a_checkpoint_and_then_the_run_but_for_its_last",
    # worker
    "tests/trainer/ranks/test_resume.py",
    # launchers
    f"{LAUNCHER}::test_a_stopped_run_ends_with_143_saved_and_leaves_no_rank_behind",
    "tests/trainer/launch/test_mpi.py",
    "tests/trainer/launch/processes/test_mpi.py",
    # DeepSpeed
    "tests/trainer/engines/test_deepspeed.py",
    "tests/trainer/settings/test_library_rules.py",
)


def test_a_part_of_the_trainers_tests_passes_in_its_image(lab: Lab) -> None:
    run_in_image(lab, CHOSEN)

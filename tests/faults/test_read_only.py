"""F30: from some moment on the volume takes nothing more, not even into files that are open.

A file system of its own, told by its kernel to find an error in itself (`trigger_fs_error` of ext4), whereupon it goes
read-only as it would for a broken device: `mount -o remount,ro` is refused while a rank has its log open.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.pods import open_pods

SIZE_BYTES = 256 << 20


class Volume:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "volume"
        self.path.mkdir()
        self._image = folder / "image"
        self._image.touch()
        os.truncate(self._image, SIZE_BYTES)
        call("mkfs.ext4", "-q", str(self._image))

    def mount(self) -> None:
        call("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))

    def break_off(self) -> None:
        device = Path(call("findmnt", "--noheadings", "--output", "SOURCE", str(self.path)).strip()).name
        Path("/sys/fs/ext4", device, "trigger_fs_error").write_text("a test")
        with pytest.raises(OSError, match="Read-only file system"):
            (self.path / "new").touch()

    def mend(self) -> None:
        call("umount", str(self.path))
        subprocess.run(["e2fsck", "-fy", str(self._image)], capture_output=True)  # 1: it has repaired
        self.mount()


def call(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    made = None
    try:
        made = Volume(tmp_path)
        made.mount()
    except (subprocess.CalledProcessError, FileNotFoundError) as failure:
        pytest.skip(f"no file system can be mounted here: {getattr(failure, 'stderr', '') or failure}")
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", str(made.path)], capture_output=True)


def test_a_volume_that_takes_nothing_more_ends_the_run_with_13_and_no_traceback(
    tmp_path, volume, record_property
):
    """The first checkpoint that cannot be written is left out, the second ends the run; the older ones are whole."""
    with open_pods(volume.path, 1, 2, {"TRAINER_STEPS": "100000"}, logs=tmp_path) as pods:
        pods.start()
        pods.wait_for((pods.folder.checkpoints / "step_00000020" / "COMMIT").exists, "no checkpoint came")
        volume.break_off()
        assert pods.finish() == 13, pods.said()
        assert "Traceback" not in pods.said() and "Logging error" not in pods.said(), pods.said()
        assert "Read-only file system" in pods.said(), pods.said()
        # the metrics of the last steps are in nobody's file
        reached = max(int(step) for step in re.findall(r"\bstep (\d+)", pods.said()))
        volume.mend()
        steps = pods.committed()
        assert {*range(1, max(steps) + 1)} <= {*pods.losses()}, "a checkpoint does not outlive its metrics"
        mended = time.time()
        pods.start()
        pods.wait_for_step(max(steps) + 5, attempt=2)
        record_property("seconds_to_recover", round(pods.recovery_s(mended), 1))
        record_property("steps_lost", reached - max(steps))
        assert pods.starts()[-1] == max(steps) >= 20

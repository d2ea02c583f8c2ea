"""F30: from some moment on the volume takes nothing more: every file that is opened for writing is refused (EROFS).

A file system cannot be remounted read-only while a rank has its log open, and what makes a kernel do it all the same, a
broken device, is not to be had without one. So Python's own audit hook stands in: it refuses in launcher and ranks what
would be opened, made, renamed or removed on the volume. A file that is already open goes on taking lines.
"""

from __future__ import annotations

from pathlib import Path

from tests.faults.pods import open_pods

SITE = """
import sys
if "trainer" in sys.orig_argv or "trainer.worker" in sys.orig_argv:
    import errno, os, pathlib
    volume, flag = {volume!r}, pathlib.Path({flag!r})
    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    def refuse(event, given):
        if event == "open":
            path, mode, flags = given
            writes = any(letter in mode for letter in "wax+") if mode else bool((flags or 0) & WRITES)
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
            path, writes = given[0], True
        else:
            return
        if writes and isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(volume):
            if os.path.exists(flag):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fsdecode(path))
    sys.addaudithook(refuse)
"""


def test_a_volume_that_takes_nothing_more_ends_the_run_with_13_and_no_traceback(tmp_path: Path) -> None:
    """The first checkpoint that cannot be written is left out, the second ends the run; the older ones are whole."""
    flag, results = tmp_path / "read-only", tmp_path / "results"
    results.mkdir()
    (tmp_path / "site").mkdir()
    site = SITE.replace("{volume!r}", repr(str(results))).replace("{flag!r}", repr(str(flag)))
    (tmp_path / "site" / "sitecustomize.py").write_text(site)
    settings = {"TRAINER_STEPS": "100000", "PYTHONPATH": str(tmp_path / "site")}
    with open_pods(results, 1, 2, settings) as pods:
        pods.start()
        commit = pods.folder.checkpoints / "step_00000020" / "COMMIT"
        pods.wait_for(commit.exists, "no checkpoint came")
        flag.touch()
        assert pods.finish() == 13, pods.said()
        assert "Traceback" not in pods.said(), pods.said()
        assert "Read-only file system" in pods.said() and "storage full (exit code 13)" in pods.said()
        flag.unlink()
        assert commit.exists()
        pods.start()  # somebody has mended the volume
        pods.wait_for_step(max(pods.losses()) + 5, attempt=2)

"""Who of the shares of one Job brings them together: one that finds all of them there, and no other one.

What is decided lies in the Job's folder of shares, as `merger/`, made in one step; so a process that was killed and
started again finds what it was to do, and does neither too little nor the same again.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path

from stratlab.analysis.measuring.shares import SHARES, Share, build_shares
from stratlab.user_error import UserError

MERGER = "merger"
SHARE, DONE = "share", "done"
GIVEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def locate_job(run_dir: Path, job: str) -> Path:
    """The folder of the shares of a Job.

    Raises:
        UserError: `job` is no name.
    """
    if not GIVEN.fullmatch(job):
        raise UserError(f"--job {job}: expected letters, digits and . _ -, 100 at most [SL-job-name]")
    return run_dir / SHARES / f"job-{job}"


def read_merger(place: Path) -> int | None:
    """The index of the share that merges; None = a share is missing still."""
    try:
        return int((place / MERGER / SHARE).read_text())
    except FileNotFoundError:
        return None


def choose_merger(place: Path, share: Share) -> int | None:
    """The same; where all shares are there and nobody merges yet it is `share`."""
    there = os.listdir(place)
    if not all(each.name in there for each in build_shares(share.count)):
        return None
    folder = place / f".{MERGER}-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        (folder / SHARE).write_text(f"{share.index}\n")
        os.rename(folder, place / MERGER)
    except OSError:
        if read_merger(place) is None:
            raise
    finally:  # another share was quicker: a folder is not renamed over one that holds something
        shutil.rmtree(folder, ignore_errors=True)
    return read_merger(place)


def is_merged(place: Path) -> bool:
    """Whether the merger has done its work."""
    return (place / MERGER / DONE).is_file()


def finish_merge(run_dir: Path, place: Path) -> None:
    """Notes that the merger has done its work. All else goes: these shares, and what other Jobs have left."""
    (place / MERGER / DONE).touch()
    for path in [*place.iterdir(), *(run_dir / SHARES).iterdir()]:
        if path not in (place, place / MERGER):
            shutil.rmtree(path, ignore_errors=True)

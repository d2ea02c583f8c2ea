"""What the ranks of these tests do when a library has broken a rank's memory: they are told of, and run once more."""

import ctypes
import os
from pathlib import Path

import pytest

from tests.ranks import run_ranks


def _break_heap(marker: Path, times: int) -> None:
    """Rank 0 frees one piece of memory twice in its first so many starts."""
    if os.environ["RANK"] != "0" or len(list(marker.parent.glob(f"{marker.name}*"))) >= times:
        return
    marker.with_name(f"{marker.name}{os.getpid()}").touch()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    piece = libc.malloc(5000)
    libc.malloc(5000)  # between it and the free rest
    libc.free(piece)
    libc.free(piece)


def test_a_broken_heap_is_told_and_its_test_repeated_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="double free"):
        run_ranks(lambda: _break_heap(tmp_path / "start", 1), 2)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.warns(UserWarning), pytest.raises(AssertionError, match=" -6"):
        run_ranks(lambda: _break_heap(tmp_path / "start", 9), 2)

"""Why a run ended, as an exit code. Below 128: the same start would fail again. From 128: worth another attempt.

The training operator's `restartPolicy: ExitCode` acts on exactly this boundary.
"""

from __future__ import annotations

import errno

from stratlab_spec.settings.config import ConfigError

DONE = 0
CRASHED = 1
BAD_CONFIG = 2
DATA_MISSING = 3
ACCELERATORS_MISSING = 4
OUT_OF_MEMORY = 10
NOT_FINITE = 12
STORAGE_FULL = 13
NO_PROGRESS = 14
DEADLINE_PASSED = 15
PEER_LOST = 134
TERMINATED = 143

REASONS = {
    DONE: "done",
    CRASHED: "crashed",
    BAD_CONFIG: "bad configuration",
    DATA_MISSING: "data or model missing",
    ACCELERATORS_MISSING: "accelerators asked for, not visible",
    OUT_OF_MEMORY: "accelerator out of memory",
    NOT_FINITE: "loss not finite",
    STORAGE_FULL: "storage full",
    NO_PROGRESS: "no progress, given up",
    DEADLINE_PASSED: "deadline passed",
    PEER_LOST: "a peer was lost or a collective timed out",
    137: "killed (SIGKILL)",
    TERMINATED: "stopped from outside",
}

# Messages of gloo, NCCL and the rendezvous store on the survivors when another process has ended.
PEER_GONE_WORDS = ("connection closed by peer", "connection reset by peer", "broken pipe")
PEER_LOST_WORDS = (
    *PEER_GONE_WORDS,
    "timed out waiting",
    "connection refused",
    "store->get",
    "recvvalue failed",
    "nccl error",
    "watchdog caught collective operation timeout",
)


# What libraries that write files make of a full volume, or of one that is gone: the errno is lost on the way.
STORAGE_FULL_WORDS = (
    "no space left on device",
    "disk quota exceeded",
    "read-only file system",
    "input/output error",
    "file too large",  # the longest file that the process or the volume allows
    "pytorchstreamwriter failed writing",  # torch.save
    "iostream error",  # torch.save to a path (torch 2.13)
    "unexpected pos",  # torch.save, when it closes an incomplete file; it replaces the one above
)
STORAGE_FULL_ERRNOS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,  # a broken file system is read-only,
    errno.EIO,  # and it also appears for a volume that fails during a write
)


class DataMissing(Exception):
    """The data set or the model is missing, or cannot be read as configured."""


class AcceleratorsMissing(Exception):
    """The run needs accelerators, and its processes would not find one each."""


class NotFinite(Exception):
    """The loss became NaN or infinite, or gradients did at every loss scale."""


class StorageFull(Exception):
    """A volume has no space left, and the run cannot continue without it."""


class FolderGone(StorageFull):
    """The run's folder was removed or moved while it ran."""


class NoProgress(Exception):
    """The last starts all ended without reaching a new step."""


class PeerLost(Exception):
    """Another process has failed, and this process cannot continue without it."""


class Stopped(Exception):
    """A rank received a signal to stop, and all ranks have agreed on the step."""


class DeadlinePassed(Exception):
    """The run's time is over."""


class OutOfMemory(Exception):
    """A device ran out of memory."""


REFUSALS: dict[type[Exception], int] = {
    ConfigError: BAD_CONFIG,
    DataMissing: DATA_MISSING,
    AcceleratorsMissing: ACCELERATORS_MISSING,
    OutOfMemory: OUT_OF_MEMORY,
    NoProgress: NO_PROGRESS,
    DeadlinePassed: DEADLINE_PASSED,
}
"""Reasons that may keep a run from starting."""
CODES: dict[type[Exception], int] = {
    **REFUSALS,
    NotFinite: NOT_FINITE,
    Stopped: TERMINATED,
    StorageFull: STORAGE_FULL,
    PeerLost: PEER_LOST,
}
OF_TORCH = {  # which is not imported here
    "OutOfMemoryError": OUT_OF_MEMORY,
    **dict.fromkeys(("DistBackendError", "DistNetworkError", "DistStoreError"), PEER_LOST),
}


def exit_code(failure: BaseException) -> int:
    """Return the exit code, by which the operator decides about another attempt."""
    name, text = type(failure).__name__, str(failure).lower()
    known = next((code for kind, code in CODES.items() if isinstance(failure, kind)), OF_TORCH.get(name))
    if known is not None and known != PEER_LOST:
        return known
    if is_storage_full(failure):
        return STORAGE_FULL
    if known or name.startswith("Rendezvous"):
        return PEER_LOST
    if isinstance(failure, RuntimeError) and any(words in text for words in PEER_LOST_WORDS):
        return PEER_LOST
    return CRASHED


def is_told_in_a_sentence(failure: BaseException) -> bool:
    """Return whether the error's text is enough; a crash needs the stack too.

    A lost peer needs it if no process saw the peer end: a time-out, or an error of NCCL.
    """
    code, text = exit_code(failure), str(failure).lower()
    if code == PEER_LOST:
        return isinstance(failure, PeerLost) or any(words in text for words in PEER_GONE_WORDS)
    return code != CRASHED


def is_storage_full(failure: BaseException) -> bool:
    """Return whether a failure, or its cause, is a volume without space."""
    cause: BaseException | None = failure
    while cause is not None:
        text, number = str(cause).lower(), cause.errno if isinstance(cause, OSError) else None
        if isinstance(cause, StorageFull) or number in STORAGE_FULL_ERRNOS:
            return True
        if any(words in text for words in STORAGE_FULL_WORDS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def reason(code: int) -> str:
    """Return a sentence for an exit code, also for signals."""
    if code in REASONS:
        return REASONS[code]
    return f"signal {code - 128}" if code > 128 else f"exit code {code}"


def from_status(status: int) -> int:
    """Return the exit code of a process; a signal is negative to Python and becomes 128 + n."""
    return status if status >= 0 else 128 - status


def first_failure(exit_codes: dict[int, int]) -> tuple[int, int]:
    """Return (rank, exit code) of the culprit; ranks that only lost a peer, or received a stop signal, are survivors.

    A negative code is a signal (multiprocessing's convention) and becomes 128 + n.
    """
    codes = {rank: from_status(code) for rank, code in exit_codes.items()}
    culprits = {rank: code for rank, code in codes.items() if code not in (PEER_LOST, TERMINATED)}
    return next(iter((culprits or codes).items()))

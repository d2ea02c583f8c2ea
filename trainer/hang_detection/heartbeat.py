"""Share a rank's activity with its launcher, and find out from all ranks which one did not arrive.

The activity is in a few words of memory, readable in any state of the rank. A store takes 50 ns and needs no other
thread: the launcher can read even if the main thread is stuck or a lock is never released. Times are from the monotonic
clock, which all processes of a machine share, in ns.

`judge` finds from the reports of all ranks which rank did not arrive, and its activity. It applies these criteria in
order; the first one that separates the ranks decides:

1. silent: stopped, or holding Python's lock, so that its watchdog thread does not run
2. elsewhere: its stack is not in a collective, and it has no collective in progress
3. late: among equal ranks so far, fewer collectives begun than its peers in one group, or an earlier step

A waiting rank is suspected only if no other rank is. If all ranks wait in the same collective, all have arrived, and
the network is at fault, even if some of them have begun other work (a checkpoint).

C code writes a rank's Python stack inside a signal handler: it needs neither the main thread nor Python's lock. A
stopped process (SIGSTOP, a frozen container) does not write a stack; /proc shows that it is stopped.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import re
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

FOLDER = "STRATLAB_PULSE"
"""Environment variable from the launcher for the ranks of its pod; without it, the pulse is private."""
STEP, MOVES, ALIVE_NS, WAITING_NS, MOVED_NS, ASKED, TOLD, RANK, PROCESS, THREAD = range(10)
WORDS = 10


class HeartbeatReading(NamedTuple):
    """One reading of a rank's memory by the launcher."""

    step: int
    """0 = before the first step."""
    moves: int
    """Grows with every activity that is not a step."""
    alive_ns: int
    """Time of the watchdog thread's last run; a stopped rank, or one holding Python's lock, does not update it."""
    waiting_ns: int
    """Start of the wait for other ranks; 0 = not waiting."""
    moved_ns: int
    """Time at which the watchdog thread last saw progress."""
    asked: int
    told: int
    """Number of the last question that the watchdog thread answered."""
    rank: int
    process: int
    thread: int
    """Python's identifier of the main thread."""


class Pulse:
    """The rank's side: the loop sets `words[STEP] = step`, all other activity calls `move`."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self.words = memoryview(_map(path)).cast("q")
        self.path = path
        self.words[RANK], self.words[PROCESS] = rank, os.getpid()
        self.words[THREAD] = threading.main_thread().ident or 0

    def move(self) -> None:
        """Report progress outside of steps."""
        self.words[MOVES] += 1

    def read(self) -> HeartbeatReading:
        return HeartbeatReading(*self.words)


def open_pulse(env: Mapping[str, str], local_rank: int, rank: int) -> Pulse:
    """Return this rank's pulse, in the launcher's folder if there is one."""
    folder = env.get(FOLDER)
    return Pulse(pulse_file(Path(folder), local_rank) if folder else None, rank)


def pulse_file(folder: Path, local_rank: int) -> Path:
    return folder / f"rank{local_rank}.pulse"


def answer_file(pulse: Path) -> Path:
    """Return the file in which the watchdog thread answers."""
    return pulse.with_suffix(".json")


def stack_file(pulse: Path) -> Path:
    """Return the file in which the signal writes the Python stack."""
    return pulse.with_suffix(".stack")


class Listener:
    """The launcher's side of one rank.

    Raises:
        OSError, ValueError: the rank has not created its file yet.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 8 * WORDS)).cast("q")
            self.inode = os.fstat(file.fileno()).st_ino
        self.path = path

    def read(self) -> HeartbeatReading:
        return HeartbeatReading(*self.words)

    def ask(self) -> int:
        """Ask the watchdog thread for its state; return the number of the question."""
        self.words[ASKED] += 1
        return self.words[ASKED]


def _map(path: Path | None) -> mmap.mmap | bytearray:
    if path is None:
        return bytearray(8 * WORDS)
    aside = path.with_suffix(".new")
    aside.write_bytes(bytes(8 * WORDS))
    with open(aside, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 8 * WORDS)
    os.replace(aside, path)
    return memory


ASK = signal.SIGUSR2  # SIGUSR1 makes a rank stop
INNERMOST = 3
"""Frames: the largest distance of a wait inside torch from the line that waits."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_ours(self) -> bool:
        """Return whether the frame is in the trainer, but not in hang detection."""
        outside = "/site-packages/" in self.file or "/tests/" in self.file
        return "/trainer/" in self.file and not outside and not self.is_wait

    @property
    def is_wait(self) -> bool:
        """Return whether the frame waits for other ranks."""
        return "/torch/distributed/" in self.file or self.file.endswith(
            ("/hang_detection/rank_zero_task.py", "/deepspeed/comm/torch.py")
        )

    def __str__(self) -> str:
        inside, elsewhere = self.file.rpartition("/trainer/")[2], "/".join(Path(self.file).parts[-3:])
        return f"{f'trainer/{inside}' if self.is_ours else elsewhere}:{self.line} {self.function}"


def write_stacks_to(file: IO[str]) -> None:
    """Make the signal `ASK` append the stacks of all threads to `file`, which stays open until the process ends."""
    faulthandler.register(ASK, file=file, all_threads=True, chain=False)


def read_stack(text: str, thread: int) -> list[Frame]:
    """Return the stack of one thread from the newest dump in `text`, innermost frame first; empty without a dump.

    Args:
        thread: Python's identifier of the thread.
    """
    found: list[Frame] = []
    inside = False
    for line in text.splitlines():
        if head := _THREAD.match(line):
            inside = int(head[1], 16) == thread
            found = [] if inside else found
        elif inside and (frame := _FRAME.match(line)):
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            found.append(Frame(frame["file"], number, frame["function"]))
    return found


def is_waiting(stack: list[Frame]) -> bool:
    """Return whether the innermost frames wait for other ranks."""
    return any(frame.is_wait for frame in stack[:INNERMOST])


def read_process_state(process: int) -> str:
    """Return the state as in `ps`: R running, S asleep, D waiting for a disk, T stopped, Z ended; "" = absent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


SILENT, ELSEWHERE, BESIDE, INSIDE, WAITS = range(5)
"""Levels of suspicion that a rank delays the others, most suspicious first."""
STOPPED = ("T", "t")


@dataclass(frozen=True)
class Group:
    """A process group as seen by one of its ranks."""

    about: str
    ranks: list[int]
    begun: int
    """Number of collectives."""


@dataclass(frozen=True)
class RankState:
    """One rank during a hang."""

    rank: int
    pod: str
    node: str
    step: int
    still_s: float
    """Seconds since its last progress."""
    answers: bool
    """Whether its watchdog thread runs."""
    process_state: str
    phase: str = ""
    waits_s: float = 0.0
    pending: list[str] = field(default_factory=list)
    """Collectives in progress: kind, number, group."""
    groups: dict[str, Group] = field(default_factory=dict)
    stack: list[Frame] = field(default_factory=list)

    @property
    def suspicion(self) -> int:
        """Return one of the constants above."""
        if self.process_state in STOPPED or (not self.answers and not is_waiting(self.stack)):
            return SILENT
        if not self.stack or is_waiting(self.stack):
            return WAITS
        inside = "/torch/autograd/" in self.stack[0].file  # a backward pass may wait inside C++
        if self.pending:
            return WAITS if inside else BESIDE
        return INSIDE if inside else ELSEWHERE


@dataclass(frozen=True)
class HangVerdict:
    """The ranks that did not arrive; empty if all wait for each other."""

    ranks: list[int]
    sentence: str


def judge(states: Sequence[RankState], world_size: int) -> HangVerdict:
    """Return the verdict over the ranks of all pods that answered; ranks without an answer are missing."""
    known = {state.rank for state in states}
    if missing := [rank for rank in range(world_size) if rank not in known]:
        waits = _who_waits(states, missing)
        return HangVerdict(missing, f"no report from {_name(missing)}{waits} [SL-ranks-unheard]")
    least = min(state.suspicion for state in states)
    suspects = [state for state in states if state.suspicion == least]
    if len(suspects) > 1:
        met = least == WAITS and set.intersection(*(set(state.pending) for state in states))
        suspects = suspects if met else _behind(suspects, states)
    if len(suspects) == len(states) > 1:
        doing = "; ".join(f"rank {s.rank}: {_describe_doing(s)}" for s in states[:8])
        return HangVerdict([], f"all ranks wait for each other: {doing} [SL-all-ranks-wait]")
    ranks = sorted(state.rank for state in suspects)
    absent = "; ".join(_describe(state) for state in suspects[:4])
    return HangVerdict(ranks, f"{absent}{_who_waits(states, ranks)} [SL-rank-absent]")


def _behind(suspects: list[RankState], states: Sequence[RankState]) -> list[RankState]:
    begun = {
        name: max(other.groups[name].begun for other in states if name in other.groups)
        for state in suspects
        for name in state.groups
    }
    late = {s.rank for s in suspects if any(group.begun < begun[name] for name, group in s.groups.items())}
    if late and len(late) < len(suspects):
        return [state for state in suspects if state.rank in late]
    first = min(state.step for state in suspects)
    return [state for state in suspects if state.step == first]


def _name(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def _describe(state: RankState) -> str:
    where = ", ".join(filter(None, [f"node {state.node}" if state.node else "", f"pod {state.pod}"]))
    return f"rank {state.rank} ({where}) did not arrive: {_describe_doing(state)}"


def _describe_doing(state: RankState) -> str:
    step = f"at step {state.step}" if state.step else "before the first step"
    parts = [
        f"{step} ({state.phase})" if state.phase else step,
        f"without progress for {state.still_s:.0f} s",
    ]
    if state.process_state in STOPPED:
        parts.append("the process is stopped (SIGSTOP, or a frozen container)")
    elif not state.answers and state.stack:
        parts.append("it holds Python's lock")
    if state.stack:
        parts.append(f"in {state.stack[0]}")
        own = next((frame for frame in state.stack if frame.is_ours), state.stack[0])
        parts += [f"called from {own}"] if own != state.stack[0] else []
    if state.pending:
        parts.append(f"under way: {state.pending[0]}")
    return ", ".join(parts)


def _who_waits(states: Iterable[RankState], without: Sequence[int]) -> str:
    others = [state for state in states if state.rank not in without]
    if not others:
        return ""
    verb = "waits" if len(others) == 1 else "wait"
    where = next((f" in {state.pending[0]}" for state in others if state.pending), "")
    return f"; {_name([state.rank for state in others])} {verb}{where}"


def state_from(told: dict[str, Any]) -> RankState:
    """Build the state from the JSON form of `dataclasses.asdict`."""
    groups = {name: Group(**group) for name, group in told["groups"].items()}
    return RankState(**{**told, "groups": groups, "stack": [Frame(*frame) for frame in told["stack"]]})

"""Many runs in few forks of ranks: all of one world size go together, when a test first asks for one of them."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tests.ranks import fork_ranks

STARTING_S, RUN_S = 120.0, 10.0
"""To start; per run and rank. Several times what is needed beside much other work. Then ranks that hang are ended."""
OUTPUT_KEPT = 2500


class Run(Protocol):
    """One thing that ranks do together and leave a file of."""

    @property
    def world_size(self) -> int:
        """Ranks it needs."""


AnyRun = TypeVar("AnyRun", bound=Run)


class Forks(Generic[AnyRun]):
    """Runs, and what the ranks that failed have said."""

    def __init__(self, runs: Sequence[AnyRun], work: Callable[[Sequence[AnyRun]], Any]) -> None:
        self._runs, self._work = tuple(runs), work
        self._complaints: dict[int, str] = {}

    def complaint(self, world_size: int) -> str:
        """Empty if all ranks of this world size ended well; they have run when this returns."""
        if world_size not in self._complaints:
            runs, work = [run for run in self._runs if run.world_size == world_size], self._work
            limit_s = STARTING_S + RUN_S * world_size * len(runs)
            ranks = fork_ranks(lambda: work(runs), world_size, timeout_s=limit_s)
            self._complaints[world_size] = "\n".join(
                f"rank {rank.rank} ended with {rank.exit_code}\n{rank.output[-OUTPUT_KEPT:]}"
                for rank in ranks
                if rank.exit_code
            )
        return self._complaints[world_size]

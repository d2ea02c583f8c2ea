"""GPU traces of a whole team with known answers: `simulate(folder, Scene(...))` writes one file per rank.

All ranks are simulated together, so a straggler, a slower link, a bubble or a skewed clock has the effect on the others
that it would have. The traces are a stand-in for what torch's profiler writes on GPUs; what they say is exact.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.stratlab.simulated.bookkeeping import build_rank_truth, build_step_truths
from tests.stratlab.simulated.kineto_text import build_tail
from tests.stratlab.simulated.program import Team
from tests.stratlab.simulated.scene import Scene
from tests.stratlab.simulated.truth import RankTruth, StepTruth, Truth

__all__ = ["RankTruth", "Scene", "StepTruth", "Truth", "simulate", "stream"]


def simulate(folder: Path, scene: Scene) -> Truth:
    """Writes `rank{r}_trace.json` for every rank, and says what they must give."""
    folder.mkdir(parents=True, exist_ok=True)
    team = Team(scene)
    files = {rank: folder / f"rank{rank}_trace.json" for rank in range(scene.ranks)}
    hosts: dict[int, list[tuple[int, int]]] = {rank: [] for rank in files}
    with ExitStack() as stack:
        opened = {rank: stack.enter_context(open(path, "w")) for rank, path in files.items()}
        for step in range(scene.first_step, scene.first_step + scene.steps):
            for rank, span in team.run_step(step).items():
                hosts[rank].append(span)
                opened[rank].write(team.members[rank].give_text())
        for member in team.members:
            opened[member.rank].write(build_tail(member.rank, member.cpu + member.origin))
    steps = {
        (member.rank, scene.first_step + i): truth
        for member in team.members
        for i, truth in enumerate(build_step_truths(member, hosts[member.rank], scene.stages > 1))
    }
    return Truth(scene, files, steps, {member.rank: build_rank_truth(member) for member in team.members})


def stream(scene: Scene) -> Iterator[dict[int, str]]:
    """The files' text step by step, for sizes at which neither text nor truth fit the memory: the pieces of all ranks,
    and nothing of them is kept."""
    team = Team(scene)
    for step in range(scene.first_step, scene.first_step + scene.steps):
        team.run_step(step)
        yield {member.rank: member.give_text() for member in team.members}
        for member in team.members:
            member.work.clear()
            member.labels.clear()
    yield {member.rank: build_tail(member.rank, member.cpu + member.origin) for member in team.members}

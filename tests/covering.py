"""Which cases of a large table are enough for every change: a small choice that shows everything the table shows."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar

Case = TypeVar("Case")


def choose_cover(
    cases: Sequence[Case],
    traits_of: Callable[[Case], set[Hashable]],
    cost_of: Callable[[Case], float],
    needed: Collection[Case] = (),
) -> list[Case]:
    """Cases, in their order, that together have every trait that any of them has, for little cost; never by chance.

    Greedy: after the `needed` ones comes, each time, the case that adds most new traits for its cost. What the later
    ones made needless goes again.
    """
    traits = [traits_of(case) for case in cases]
    costs = [cost_of(case) for case in cases]
    kept = {place for place, case in enumerate(cases) if case in needed}
    assert len(kept) == len(needed), "a needed case is not in the table"
    chosen = sorted(kept)
    missing = set().union(*traits) - set().union(*(traits[place] for place in kept))
    while missing:
        best = max(range(len(cases)), key=lambda place: len(traits[place] & missing) / costs[place])
        chosen.append(best)
        missing -= traits[best]
    for place in sorted(set(chosen) - kept, key=lambda place: -costs[place]):
        others = set().union(*(traits[other] for other in chosen if other != place))
        if traits[place] <= others:
            chosen.remove(place)
    return [cases[place] for place in sorted(chosen)]

"""Memory of one rank, counted: the run's own engine takes two steps on tensors without storage, over a process group
that is not there, while the life of every storage is followed (docs/memory.md).

    settings ─▶ rules ─▶ one rank alone ─▶ engine ─▶ two steps on inputs of the right shape ─▶ timeline ─▶ result
                         (alone, answers, cuda_rules)    (storages, causes)

Nothing here outlives a count: what libraries are told otherwise is told by context managers, which take it back.
The way a run goes imports nothing of this package.
"""

"""Memory of one rank, counted: the run's own engine takes two steps on tensors without storage, over a process group
that is not there, while the life of every storage is followed (docs/memory.md).

    command ─▶ rules ─▶ memory_profile ─▶ steps: one rank alone (fake_cluster), two steps ─▶ timeline ─▶ result
                        several counts    watched by storages and causes

Nothing here outlives a count: what libraries are told otherwise is told by context managers, which take it back.
The way a run goes imports nothing of this package.
"""

"""Count the memory of one rank: the run's own engine takes two steps on tensors without storage.

The process group is a fake one, and the life of every storage is followed (docs/memory.md).

    command ─▶ rules ─▶ memory_profile ─▶ steps: a single rank (fake_cluster), two steps ─▶ timeline ─▶ result
                        several counts    watched by storages and causes

A count leaves no trace in its process: context managers replace functions of libraries and restore them. Code on a
run's own path does not import this package.
"""

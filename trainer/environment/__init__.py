"""Check the ranks' environment with ranks: `mode: check` in the pods, `python -m trainer.environment` on this machine.

    launcher of each pod    roll call ── starts one rank per device ──────────────── verdict ─▶ exit code
    ranks                                measure, apart and together ─▶ board ─┐
    launcher of the first pod            board (a TCPStore) ◀──────────────────┘ judges, writes the table

Ranks only measure. Each rank posts its results and its current stage to the board of the first launcher. So a rank that
hangs or dies still gets a line in the table.
"""

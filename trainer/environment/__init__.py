"""The check of what ranks will run on, made by ranks: `mode: check` in the pods, `python -m trainer.environment` here.

    launcher of each pod    roll call ── starts one rank per device ──────────────── verdict ─▶ exit code
    ranks                                measure, alone and together ─▶ board ─┐
    launcher of the first pod            board (a TCPStore) ◀──────────────────┘ judges, writes the table

A rank never judges. What it has found, and what it is at, it puts up on a board that the first launcher keeps, so that
a rank that hangs or dies is a line of the table.
"""

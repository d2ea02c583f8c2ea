"""Analyze the traces of a run: the parts of each step, by rank and by phase.

lanes, collective_calls       one rank: its events by kind, its calls of collectives.
time_breakdown                one step, divided into parts that sum to it.
step_rows, kernels            the rows of the report: steps, phases, gaps, streams, kernels, copies, collectives.
rank, measure                 all of one rank; all ranks, read in processes or in shares (share_job).
hta_*                         Holistic Trace Analysis in addition, in a process of its own.
report, tables, untraced      report.json and the tables; the same for a run without traces.
advice, advice_rules          changes to try next.
summaries, *_sections, report_pages   the same for readers: one HTML page, Markdown.
mlflow_upload                 uploads it to the MLflow run.
run_analysis, foreign_traces  from a run directory, or from traces of another program, to all of it.

This module imports nothing: a process that only reads one trace must not load pages and tables.
"""

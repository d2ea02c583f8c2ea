"""What the traces of a run say: where each step's time went, on which rank, in which phase.

lanes, collective_calls       one rank: its events by kind, its calls of collectives
time_breakdown                one step, divided into parts that sum to it
step_rows, kernels            the rows of the report: steps, phases, gaps, streams, kernels, copies, collectives
rank, measure                 all of one rank; all ranks, read in processes or in shares (share_job)
hta_*                         Holistic Trace Analysis beside it, in a process of its own
report, tables, untraced      report.json and the tables; those of a run without traces
advice, advice_rules          what to try next
summaries, *_sections, report_pages   the same for readers: one HTML page, Markdown
mlflow_upload                 puts it into the MLflow run
run_analysis, foreign_traces  the way from a run directory, or from traces of another program, to all of it

Nothing is imported here: a process that only reads one trace must not pay for pages and tables.
"""

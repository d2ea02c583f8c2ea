"""What the traces of a run say: where each step's time went, on which rank, in which phase.

dividing        one step: its events by lane, its calls, and the parts that sum to it
measuring       one rank: its steps, kernels, copies, collectives as rows; then all ranks of a run
hta             Holistic Trace Analysis beside it, in a process of its own
reporting       the content of report.json and of the tables
advice          what to try next
pages           the same for readers: one HTML page, Markdown
mlflow_upload   puts it into the MLflow run
analyze         the way from a run directory to all of it

Nothing is imported here: a process that only reads one trace must not pay for pages and tables.
"""

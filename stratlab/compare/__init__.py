"""Runs side by side: what each measured, whether they may be compared, and who is best in what.

run_sources, placement, run_rows      what each run tells: folders, experiments, nodes, layouts, step times
rules, variants, fairness             may they be compared: the table of facts, repeats, the audit
winners, efficiency, search_ranking   who is best in what, scaling, sharding, a search over settings
attribution, step_difference, causes  why one is slower than another, in parts and in one sentence
comparison                            all of it together: the content of report.json; nothing up to here draws
*_view, report_files                  the same as a page, a table for a terminal, a CSV file
publishing                            beside the runs in MLflow, and out of a pod on a cluster
"""

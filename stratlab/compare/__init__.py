"""Compare runs: their measurements, whether they may be compared, and the best run by each measure.

run_sources, placement, run_rows      the facts of each run: folders, experiments, nodes, layouts, step times.
rules, variants, fairness             may they be compared: the table of facts, repeats, the audit.
winners, efficiency, search_ranking   the best run by each measure, scaling, sharding, a search over settings.
attribution, step_difference, causes  why one run is slower than another, in parts and in one sentence; weak times.
comparison                            all of it together: the content of report.json. Modules up to here do not draw.
*_view, report_files                  the same as a page, a table for a terminal, a CSV file.
publishing                            the report in MLflow next to the runs, and from a pod on a cluster.
"""

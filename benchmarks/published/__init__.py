"""Build the table of `stratlab expect` from published measurements: `python -m benchmarks.published`.

    data/, ../backtest/data/ ─▶ sources: one reader per table ─▶ Measured ─▶ __main__: the fastest of each group
                                                                                └─▶ stratlab/predict/published.csv

sources, image_sources    readers; each gives tokens or images per second and GPU, and the FLOPs of one of them.
scatter                   how much repeats of one system differ, and equal machines of several makers.

Left out: rows in 8 bits, in fp32 and TF32, runs that failed, cards without a dense peak in CARDS (AMD, V100, GB200,
B300), and rows that do not name their model, their batch or their number of GPUs.
"""

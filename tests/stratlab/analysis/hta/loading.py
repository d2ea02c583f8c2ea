"""Holistic Trace Analysis in the tests' own process, with what it rounds switched off."""

import logging
from contextlib import contextmanager

import pytest


def load_hta(files):
    from hta.configs.env_options import HTAEnvOptions
    from hta.trace_analysis import TraceAnalysis

    HTAEnvOptions.instance().set_disable_ns_rounding(True)
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        paths = {rank: str(path) for rank, path in files.items()}
        return TraceAnalysis(trace_files=paths, include_last_profiler_step=True)
    finally:
        logging.disable(level)


@contextmanager
def unrounded():
    """HTA rounds its results to two decimals; here they keep all."""
    import pandas as pd

    with pytest.MonkeyPatch.context() as patch:
        for kind in (pd.DataFrame, pd.Series):
            patch.setattr(kind, "round", lambda self, *_, **__: self)
        yield


def build_idle_of_hta(hta, ranks):
    """(rank, stream, category) -> us, of its idle time breakdown; categories that do not occur are absent."""
    with unrounded():
        frame = hta.get_idle_time_breakdown(ranks=ranks, visualize=False)[0]
    return {(r.rank, r.stream, r.idle_category): r.idle_time for r in frame.itertuples()}


def build_kernels_of_hta(hta):
    """(rank, name) -> row of its kernel breakdown with copies."""
    from stratlab.analysis.hta_analyses import ALL_KERNELS

    frame = hta.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True, **ALL_KERNELS)[1]
    return {(int(row["rank"]), row["name"]): row for row in frame.to_dict("records")}

"""DeepSpeed's flops profiler around one forward pass, on one rank.

Its own switch (flops_profiler.enabled) would time every phase of every micro-batch too, wait for the device each time
and print that to the end of the run (deepspeed 0.19.8: it turns wall_clock_breakdown on). So DeepSpeed is given the
section with the switch off, and its profiler is called here.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

log = logging.getLogger("trainer")


@contextmanager
def profile_flops(engine: Any, step: int, path: Path) -> Iterator[None]:
    """Counts the operations of the forward pass inside, by module, into a text file. What goes wrong costs the file.

    Functions of torch are replaced meanwhile, and every module has hooks that wait for the device.

    Args:
        engine: DeepSpeed's, with its settings.
        step: told in the file.
    """
    from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler

    profiler = FlopsProfiler(engine.module, engine, engine.flops_profiler_recompute_fwd_factor())
    profiler.start_profile()
    try:
        yield
        profiler.stop_profile()
        _write(_describe(profiler, engine, step), path)
    finally:
        profiler.end_profile()


def _describe(profiler: Any, engine: Any, step: int) -> str:
    """What it prints, "" where it cannot."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            profiler.print_model_profile(
                step,
                engine.flops_profiler_module_depth(),
                engine.flops_profiler_top_modules(),
                engine.flops_profiler_detailed(),
            )
    except Exception as failure:  # its arithmetic, of somebody's model: a text less, and no step of training
        log.warning("DeepSpeed's flops profiler could not tell its counts: %r", failure)
        return ""
    return text.getvalue()


def _write(text: str, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if text:
            temporary.write_text(text)
            os.replace(temporary, path)
    except OSError as failure:
        log.warning("%s is dropped, training goes on: %s", path.name, failure)

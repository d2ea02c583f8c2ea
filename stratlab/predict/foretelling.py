"""What is known of a run's memory before it is started, in one sentence: for the verbs that start runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stratlab.predict.answering import complete, look_up
from stratlab.predict.asking import PREFIX, build_question
from stratlab.predict.counting import find_cache
from stratlab.predict.device_memory import DEVICE_GIB, GIB, Verdict
from stratlab.predict.operations_file import SHIPPED, find_operations, read_operations
from stratlab.predict.prediction import predict
from stratlab.user_error import UserError

VOLUME = "_operations"
"""Folder of the results in which the trainer's pods look too."""


def foretell(name: str, env: Mapping[str, str], results: Path | None = None) -> str:
    """`fsdp: foreseen for GPUs of 79.2 GiB: too near full, 70.10 GiB each, most of it activations (31.2); ...`; ""
    where no operations file answers. Nothing is counted for it.

    Args:
        env: of the run's training pods, with PET_NNODES and PET_NPROC_PER_NODE as an operator injects them.
        results: folder of results on this machine, which may have files of its own.
    """
    nodes, per_node = env.get("PET_NNODES", "1").split(":")[0], env.get("PET_NPROC_PER_NODE", "1")
    if not (nodes.isdecimal() and per_node.isdecimal()):
        return ""  # the trainer refuses them
    ranks, share = int(nodes) * int(per_node), int(per_node)
    settings = {
        key.removeprefix(PREFIX).lower(): value for key, value in env.items() if key.startswith(PREFIX)
    }
    if settings.get("memory_forecast") == "false" or settings.get("mode", "train") != "train":
        return ""
    folders = [*([results / VOLUME] if results else []), find_cache(), SHIPPED]
    try:
        question = build_question(name, settings, ranks, share, whole=True)
        files = list(read_operations(folders, lambda wrong: None))  # pods tell of them, and go on likewise
        file = find_operations(files, question)
    except UserError:  # of a setting that others refuse, with their own words
        return ""
    if file is None or question.find_refusal(file.share(ranks)):
        return ""
    found = complete(predict(question, file, DEVICE_GIB), look_up(files, DEVICE_GIB))
    most = max(found.peak.causes, key=lambda cause: found.peak.causes[cause])
    needs = found.show(found.needs_gib)
    told = f"{name}: foreseen for GPUs of {DEVICE_GIB:g} GiB: {found.verdict}, {needs} GiB each"
    if found.verdict is Verdict.FITS:
        return told
    return f"{told}, most of it {most} ({found.peak.causes[most] / GIB:.2f}); {found.advice}"

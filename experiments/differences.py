"""In what the small form of a sweep may differ from the full one: one table; everything else must be the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import normpath
from typing import Any

from experiments.catalogue import list_values

STRATEGY = "strategy"
SMALLER: Mapping[str, str] = {
    "run.nodes": "pods",
    "run.processesPerNode": "processes of a pod",
    "run.config.global_batch_size": "samples of a step",
    "run.config.micro_batch_size": "samples of a forward pass",
    "run.config.image_size": "pixels of an edge",
    "run.config.seq_len": "tokens of a row",
    "run.config.train_samples": "samples to train on",
    "run.config.epochs": "passes over them",
    "run.config.steps": "steps",
    "run.config.warmup_steps": "steps of warm-up",
    "run.config.evaluate_every": "steps between validations",
    "run.config.checkpoint_every": "steps between checkpoints",
    "run.config.profile_first_step": "the first step that is recorded",
    "run.config.profile_steps": "recorded steps",
    "run.config.persistent_elements": "elements below which stage 3 keeps a tensor whole",
    "repeats": "how often each combination runs",
}
"""Setting -> what is counted. The small form has a number that is not larger. The trained weights and the data set are
smaller too, but lie at the same path."""
STEP, FORWARD = "run.config.global_batch_size", "run.config.micro_batch_size"
GPU_ALONE: Mapping[str, str] = {
    "run.config.zeropp": "qwz and qgz need a GPU: the quantizer of DeepSpeed is CUDA",
}
"""Of the values that the full form has in its matrix, the small one has those that a CPU can do."""
CLUSTER = "examples/cluster-"
"""In the path of a values file that says what a cluster asks of its pods: the full form's alone."""


def find_differences(full: Mapping[str, Any], small: Mapping[str, Any]) -> list[str]:
    """What the table does not allow, a sentence each.

    Args:
        full, small: sweeps as they are written (stratlab/sweep/definition.py).
    """
    return [
        *_compare_rest(full, small),
        *_compare_set(full.get("set", {}), small.get("set", {})),
        *_compare_matrix(full.get("matrix", {}), small.get("matrix", {})),
        *_compare_exclude(full, small),
    ]


def _compare_rest(full: Mapping[str, Any], small: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*full, *small} - {"set", "matrix", "exclude", "values"}):
        yield from _compare(key, full.get(key), small.get(key))
    wanted = [file for file in list_values(full) if CLUSTER not in file]
    found = list_values(small)
    yield from _compare("values", wanted, found)
    for file in found:
        if not file.startswith("/") and normpath(f"full/{file}") != normpath(f"small/{file}"):
            two = "one file beside the full form and another beside the small one"
            yield f"values: {file} is {two} [SL-form-other-file]"


def find_clusters(sweep: Mapping[str, Any]) -> list[str]:
    """The values files of a cluster that a sweep names."""
    return [file for file in list_values(sweep) if CLUSTER in file]


def _compare_set(full: Mapping[str, Any], small: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*full, *small}):
        if key == FORWARD and key in full and _is_smaller(full.get(STEP), small.get(key)):
            continue  # a part of a step; how large a part is a question of memory, not of the work
        yield from _compare(f"set: {key}", full.get(key), small.get(key))


def _compare(place: str, full: Any, small: Any) -> Iterator[str]:
    if full == small:
        return
    if place.removeprefix("set: ") not in SMALLER or full is None or small is None:
        yield f"{place} is {full!r} in the full form and {small!r} in the small one [SL-form-differs]"
    elif not _is_smaller(full, small):
        wanted = f"expected a whole number from 1 to {full!r}"
        yield f"{place} is {small!r} in the small form, {wanted} [SL-form-not-smaller]"


def _compare_matrix(full: Mapping[str, Any], small: Mapping[str, Any]) -> Iterator[str]:
    if list(full) != list(small):
        axes = f"{list(full)} in the full form and {list(small)} in the small one"
        yield f"matrix: has the axes {axes} [SL-form-axes]"
        return
    for axis, values in full.items():
        there = small[axis]
        if there == values:
            continue
        if axis in GPU_ALONE:
            if not set(there) < set(values):
                yield f"matrix: {axis} is {there}, not a part of {values} [SL-form-no-part]"
        elif axis not in SMALLER:
            yield f"matrix: {axis} is {values} in the full form and {there} in the small one [SL-form-axis]"
        elif len(there) > len(values) or not all(map(_is_smaller, values, there)):
            wanted = f"expected whole numbers from 1 to those of {values}"
            yield f"matrix: {axis} is {there} in the small form, {wanted} [SL-form-axis-not-smaller]"


def _is_smaller(full: Any, small: Any) -> bool:
    """A count of the same kind: nothing is switched off by a 0 that the full form has not."""
    if type(full) is not int or type(small) is not int:
        return False
    return small == full == 0 or 1 <= small <= full


def _compare_exclude(full: Mapping[str, Any], small: Mapping[str, Any]) -> Iterator[str]:
    """By place in the matrix, for the numbers there differ; a value that the small one leaves out excludes nothing."""
    wanted, found = _places(full), _places(small)
    axes = {axis: len(values) for axis, values in small.get("matrix", {}).items()}
    kept = [entry for entry in wanted if all(place < axes.get(axis, 0) for axis, place in entry.items())]
    if sorted(map(str, kept)) != sorted(map(str, found)):
        both = f"{full.get('exclude')} in the full form and {small.get('exclude')} in the small one"
        yield f"exclude: is {both} [SL-form-exclude]"


def _places(sweep: Mapping[str, Any]) -> Sequence[dict[str, int]]:
    """Of each entry, axis -> place of its value; -1 = nowhere."""
    matrix = sweep.get("matrix", {})

    def find(axis: str, value: Any) -> int:
        values = matrix.get(axis, [])
        return values.index(value) if value in values else -1

    return [
        {axis: find(axis, value) for axis, value in sorted(entry.items())}
        for entry in sweep.get("exclude", [])
    ]

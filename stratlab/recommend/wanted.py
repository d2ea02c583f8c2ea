"""Read what is asked: a model, its data and batch, and settings that the search keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratlab import UserError
from stratlab.predict.advising import list_sizes
from stratlab.predict.asking import ask_of_model, find_model, split_settings
from stratlab.predict.counting import OF_IMAGES, OF_TEXT
from stratlab.predict.remedies import check_nodes
from stratlab.run_line import GLOBAL_BATCH, name_data
from stratlab_spec.memory.profiles import Question

BATCH = "global_batch_size"
OF_DATA = ("dataset", "dataset_path")


@dataclass(frozen=True)
class Wanted:
    """What the user asks for, apart from the GPUs and the goal.

    Attributes:
        data: as the user names it, or a usual data set.
        epochs: 0 = not given.
        settings: on which memory depends, as `name=value`.
        further: other settings -> their values.
        typed: settings that the user has given, batch and data among them.
        charts: names of the strategies' charts.
    """

    model: str
    data: str
    batch: int
    epochs: int
    settings: Sequence[str]
    further: Mapping[str, str]
    typed: frozenset[str]
    charts: Sequence[str]


def read_wanted(
    model: str,
    gpus: int,
    data: str,
    batch: int | None,
    epochs: int,
    settings: Sequence[str],
    charts: Sequence[str],
) -> Wanted:
    """Return what is asked. Without a batch each GPU has a power of two, of GLOBAL_BATCH samples or more in all.

    Raises:
        UserError: an unknown model, setting or data, one that is given twice, or a batch that GPUs cannot share.
    """
    counted, further = split_settings(settings)
    typed = {*counted, *further}
    asked = {
        "--batch": (BATCH,) if batch else (),
        "--data": OF_DATA if data else (),
        "--epochs": ("epochs", "steps") if epochs else (),
    }
    for option, names in asked.items():
        if twice := typed.intersection(names):
            raise UserError(f"{option}: is also --set {min(twice)}; leave one out [SL-recommend-twice]")
        typed |= {*names[:1]}
    if text := counted.pop(BATCH, ""):
        batch = int(text)
    if batch and batch % gpus:
        raise UserError(
            f"--batch {batch}: expected a multiple of {gpus} GPUs, for example {gpus * math.ceil(batch / gpus)} "
            "[SL-recommend-batch]"
        )
    for name in OF_DATA:
        data = data or counted.pop(name, "")
    if not data:
        data = (OF_TEXT if find_model(model).shape else OF_IMAGES)["dataset"]
    place = name_data(data)
    return Wanted(
        model,
        data,
        batch or gpus << max(0, math.ceil(math.log2(GLOBAL_BATCH / gpus))),
        epochs,
        [f"{name}={value}" for name, value in {**counted, **place}.items()],
        further,
        frozenset(typed),
        charts,
    )


def list_questions(wanted: Wanted, gpus: int, gpus_per_node: int, *, fewer: bool) -> list[Question]:
    """Return the questions of all strategies.

    Args:
        gpus_per_node: 0 = 8.
        fewer: also on fewer GPUs: powers of two, or full nodes.

    Raises:
        UserError: as `ask_of_model`.
    """
    check_nodes(gpus, gpus_per_node)
    settings = [*wanted.settings, f"{BATCH}={wanted.batch}"]

    def ask(count: int) -> list[Question]:
        per_node = min(gpus_per_node, count)
        return ask_of_model(wanted.model, count, settings, per_node)

    largest = ask(gpus)
    if not fewer:
        return largest
    sizes = [count for count in list_sizes(largest[0], gpus) if count < gpus]
    return [one for count in sizes for one in ask(count)] + largest

"""`stratlab predict` as a picture: the memory of each strategy by cause against the device, from recorded steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from stratlab.drawing.canvas import Scale, legend, line, rect, text, x_axis
from stratlab.drawing.page import build_picture
from stratlab.predict import Prediction
from stratlab.predict.answering import answer
from stratlab.predict.asking import ask_of_model
from stratlab_spec.memory import DEVICE_GIB
from stratlab_spec.memory.prediction import GATE
from stratlab_spec.memory.profiles import GIB

MODEL, GPUS = "qwen2.5-3b", 8  # as in the example of docs/predict.md
WIDTH, LEFT, RIGHT = 440.0, 12.0, 424.0
PITCH, BAR = 36.0, 14.0
CAUSES = {
    "parameters": "parameters", "gathered": "parameters", "low-precision copies": "parameters",
    "gradients": "gradients", "gradient buckets": "gradients",
    "optimizer state": "optimizer state", "master copies": "optimizer state",
    "activations": "activations", "masks": "activations", "logits and loss": "activations",
}  # fmt: skip
REST = "rest, CUDA and NCCL"
FILLS = {"parameters": 0, "gradients": 1, "optimizer state": 2, "activations": 3, REST: 7}


def draw_prediction() -> str:
    """The SVG file: a bar for each strategy, what needs least first."""
    known = [one for one in _ask() if isinstance(one, Prediction)]
    known.sort(key=lambda one: one.needs_gib)
    keys, height = legend(list(FILLS), LEFT, colours=FILLS, width=WIDTH)
    top = height + 30
    bottom = top + PITCH * len(known)
    across = Scale(0.0, DEVICE_GIB, LEFT, RIGHT)
    gate = across(GATE * DEVICE_GIB)
    parts = [keys, *x_axis(across, top, bottom, "GiB on each GPU", 5)]
    parts += [
        line(gate, top - 6, gate, bottom, "limit"),
        text(gate, top - 10, f"fits up to {100 * GATE:.0f} %", "middle", "n"),
    ]
    for place, one in enumerate(known):
        parts += _draw_bar(one, top + PITCH * place, across, gate - 8)
    return build_picture(WIDTH, bottom + 40, parts, f"Memory of {MODEL} on {GPUS} GPUs of {DEVICE_GIB:g} GiB")


def group_causes(one: Prediction) -> dict[str, float]:
    """GiB of each group of causes; they sum to what the device must have."""
    found = dict.fromkeys(FILLS, 0.0)
    for cause, size in one.peak.causes.items():
        found[CAUSES.get(cause, REST)] += size / GIB
    found[REST] += one.needs_gib - sum(found.values())
    return found


def _ask() -> Sequence[object]:
    return answer(ask_of_model(MODEL, GPUS, ()), (), DEVICE_GIB, None, [])


def _draw_bar(one: Prediction, y: float, across: Scale, right: float) -> Iterator[Markup]:
    yield text(LEFT, y + 12, one.question.name)
    batch = f"{one.show(one.needs_gib)} GiB, micro-batch up to {one.say_largest()}"
    yield text(right, y + 12, batch, "end", "n")
    x = LEFT
    for cause, gib in group_causes(one).items():
        length = across(gib) - across(0.0)
        yield rect(x, y + 16, length, BAR, f"f{FILLS[cause]}", f"{cause}: {gib:.2f} GiB")
        x += length

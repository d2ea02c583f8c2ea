"""Operations files: what `python -m trainer.count --operations` has written, and which of them answers a question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stratlab.predict.extrapolation import Peak, Sample, scale, scale_host
from stratlab.predict.operations_content import OperationsContent, describe_problem
from stratlab.predict.question import Question, as_text, is_same, say_setting
from stratlab.user_error import UserError

SCHEMA = 1
STAGES_HELD = {"interleaved1f1b": 2}
"""Schedule of a pipeline -> stages that one rank holds; 1 with every other."""


@dataclass(frozen=True)
class OperationsFile:
    """One strategy of one model, counted.

    Attributes:
        settings: setting -> value: all that memory depends on, but depth and batch.
        defaults: the same, where nobody says anything.
        layers: the model's own; 0 = not known.
        labels, channels: of the images that were counted; 0 = text.
        accumulates: a step has several micro-batches; with one alone no more is held.
        per_node: ranks that share a node, where the axes follow from that; 0 = it makes no difference.
        known: every setting there was when it was counted; one that came later, and is said, may matter.
    """

    path: Path
    key: str
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    layers: int
    scales_depth: bool
    scales_ranks: bool
    accumulates: bool
    labels: int
    channels: int
    versions: Mapping[str, str]
    axes: Mapping[str, int]
    samples: Sequence[Sample]
    per_node: int = 0
    known: Sequence[str] = ()

    @property
    def strategy(self) -> str:
        return str(self.settings["strategy"])

    @property
    def model(self) -> str:
        return str(self.settings["model"])

    def peak(self, rows: int, ranks: int, layers: int = 0) -> Peak:
        """Of the fullest rank, with micro-batches of `rows`. `layers`: 0 = the model's own."""
        return scale(self.samples, layers or self.layers, rows, ranks)

    def host(self, peak: Peak, rows: int, ranks: int, layers: int = 0) -> Peak:
        """What the rank of `peak` keeps in host memory; of no bytes without offload."""
        return scale_host(self.samples, peak.rank, layers or self.layers, rows, ranks)

    def share(self, ranks: int) -> int:
        """Ranks that see different rows: the axes that share rows are those of the count."""
        return max(1, ranks // math.prod(self.axes.get(name, 1) for name in ("tp", "cp", "pp")))

    def accumulates_for(self, question: Question) -> bool:
        """Whether a step of the run has several micro-batches."""
        return question.accumulates(self.share(question.ranks))

    def has(self, name: str, text: str) -> bool:
        """Whether it was counted with this value; yes where it answers for several."""
        meant = "bf16" if (name, text) == ("precision", "auto") else text
        return name not in self.settings or is_same(self.model, name, self.settings[name], meant)

    def misses(self, question: Question) -> list[str]:
        """What keeps this file from answering; nothing where it does."""
        wanted, ranks = question.settings, question.ranks
        # who asks for a model without settings takes a file's own, but for the depth: the model's is meant
        meant = {
            name: as_text(value)
            for name, value in self.defaults.items()
            if question.whole or name == "model_layers"
        }
        meant |= {name: text for name, text in wanted.items() if name in self.settings}
        say = partial(say_setting, self.model)
        found = [
            f"{name}={say(name, self.settings[name])} (wanted {say(name, text)})"
            for name, text in meant.items()
            if not self.has(name, text)
        ]
        found += [
            f"no setting {name} when it was counted (wanted {text})"
            for name, text in wanted.items()
            if self.known and name not in self.known
        ]
        own = wanted.get("model_layers", "0")
        if (
            "model_layers" not in self.settings
            and own not in ("0", str(self.layers))
            and not self.scales_depth
        ):
            found.append(f"model_layers={self.layers} (wanted {own})")
        counted = {sample.ranks for sample in self.samples}
        if ranks not in counted and not (self.scales_ranks and ranks > 1):
            found.append(f"ranks={', '.join(map(str, sorted(counted)))} (wanted {ranks})")
        if self.per_node and question.per_node not in (0, self.per_node):
            found.append(f"{self.per_node} ranks on a node (wanted {question.per_node})")
        if self.accumulates_for(question) and not self.accumulates:
            found.append("one micro-batch in a step (wanted several)")
        return found


def read_operations_file(path: Path) -> OperationsFile:
    """The file at `path`.

    Raises:
        UserError: it cannot be read, or is no operations file.
    """
    try:
        content = OperationsContent.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as failure:
        why = describe_problem(failure) if isinstance(failure, ValidationError) else failure.strerror
        raise UserError(
            f"{path}: no operations file ({why}); `python -m trainer.count --operations FILE` writes one "
            "[SL-operations-file]"
        ) from None
    if content.schema_version != SCHEMA:
        raise UserError(
            f"{path}: an operations file of schema {content.schema_version}, expected {SCHEMA}; count it again "
            "[SL-operations-schema]"
        )
    held = STAGES_HELD.get(str(content.settings.get("pp_schedule")), 1)
    samples = [
        Sample(one.layers, one.rows, one.ranks, one.rank, one.windows, one.host, one.axes.get("pp", 1), held)
        for one in content.samples
    ]
    rest = {name: value for name, value in content if name not in ("schema_version", "samples")}
    return OperationsFile(path=path, samples=samples, axes=content.samples[0].axes, **rest)


def read_operations(
    folders: Sequence[Path], leave_out: Callable[[UserError], None] | None = None
) -> Iterator[OperationsFile]:
    """Every file of the folders, in the order of their names; a folder that is not there has none.

    Args:
        leave_out: hears of what is none, which is left out.

    Raises:
        UserError: one is none, and nobody would hear of it.
    """
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            try:
                yield read_operations_file(path)
            except UserError as failure:
                if leave_out is None:
                    raise
                leave_out(failure)


def find_operations(files: Sequence[OperationsFile], question: Question) -> OperationsFile | None:
    """The file that answers, rather one that was counted with as many micro-batches; None = there is none."""
    able = [file for file in files if not file.misses(question)]
    return min(able, key=lambda file: file.accumulates is not file.accumulates_for(question), default=None)

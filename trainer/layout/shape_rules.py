"""What a run refuses whatever its data, its length and its devices are: by settings and the number of processes."""

from __future__ import annotations

from trainer.layout.mesh import broken_rules
from trainer.settings.config import Config
from trainer.settings.deepspeed_rules import placement_problems
from trainer.shapes.model_shapes import (
    default_image_size,
    image_size_problem,
    lone_value_problem,
    model_problems,
)
from trainer.shapes.teacher_rules import teacher_problems


def shape_problems(config: Config, ranks: int, per_node: int) -> list[str]:
    """One sentence per broken rule.

    Raises:
        DataMissing: a model whose shape is not to be had.
    """
    problems = broken_rules(config, ranks, per_node) + model_problems(config)
    problems += placement_problems(config, ranks, per_node)
    if not config.is_text:
        size = image_size_problem(config, config.image_size or default_image_size(config))
        problems += [problem for problem in (size, lone_value_problem(config, ranks)) if problem]
    return problems + teacher_problems(config)

"""`deepspeed_config`: what DeepSpeed gets of a ZeRO stage, before any process starts and without a GPU."""

from __future__ import annotations

from operator import index
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from trainer.api.keywords import Scalar, build_options, named_settings, read_settings
from trainer.launch.options import describe_count
from trainer.layout.mesh import broken_rules
from trainer.settings.config import Config, ConfigError
from trainer.settings.deepspeed_rules import placement_problems
from trainer.settings.strategy_table import STRATEGIES
from trainer.shapes.model_shapes import lone_value_problem, model_problems

Device = Literal["cuda", "cpu"]
STAGES = tuple(name for name, row in STRATEGIES.items() if row.deepspeed_stage)


def deepspeed_config(
    *,
    config: str | Path | None = None,
    processes: int | None = None,
    nodes: int = 1,
    device: Device = "cuda",
    labels: int = 0,
    channels: int = 0,
    **settings: Scalar,
) -> dict[str, Any]:
    """The content of the run's deepspeed.json: every key that DeepSpeed knows of, nothing left to its defaults.

    Args:
        config: a file of settings, or of a chart's values; `settings` win over it.
        processes: on each node; None = what the file says, else one per GPU, else one.
        device: that computes; on a CPU nothing is pinned, and the precision `auto` is fp32 instead of bf16.
        labels, channels: of an image data set, which the model's size depends on; 0 = as known, else 1000 and 3.
        settings: by their names, as of `run_experiment`; `strategy` is one of zero1, zero2, zero3 and zeropp.

    Raises:
        ConfigError: naming every broken rule, or a strategy that is not DeepSpeed's.
        DataMissing: a model whose shape is not to be had.
    """
    return build_deepspeed(build_options(config, processes, settings), nodes, device, labels, channels)


@named_settings()
def build_deepspeed(
    options: list[str], nodes: int, device: str, labels: int, channels: int
) -> dict[str, Any]:
    """As `deepspeed_config`, of options as they are typed behind `python -m trainer`."""
    asked, processes = read_settings(options)
    per_node = int(processes)
    if isinstance(nodes, bool) or not isinstance(nodes, SupportsIndex) or index(nodes) < 1:
        raise ConfigError([describe_count("nodes", nodes)])
    if problems := list(dict.fromkeys(_find_problems(asked, nodes, per_node, device))):
        raise ConfigError(problems)
    # late: a wrong setting is named at once
    from trainer.counting.inputs import build_empty_model, find_pictures
    from trainer.engines.deepspeed_config import build_settings, measure_sizes
    from trainer.settings.precision import Precision, resolve_precision

    model = build_empty_model(asked, find_pictures(asked, labels, channels))
    on_gpu = Precision("bf16" if asked.precision == "auto" else asked.precision)
    return build_settings(
        asked,
        on_gpu if device == "cuda" else resolve_precision(asked, device),
        world_size=nodes * per_node,
        processes_per_node=per_node,
        sizes=measure_sizes(model),
        device_type=device,
    )


def _find_problems(asked: Config, nodes: int, per_node: int, device: str) -> list[str]:
    if asked.strategy not in STAGES:
        return [
            f"TRAINER_STRATEGY={asked.strategy!r}: not DeepSpeed's; expected one of {', '.join(STAGES)} "
            "[SL-not-deepspeed]"
        ]
    if device not in ("cuda", "cpu"):
        return [f"device={device!r}: expected cuda or cpu [SL-device-kind]"]
    ranks = nodes * per_node
    rules = broken_rules(asked, ranks, per_node) + placement_problems(asked, ranks, per_node)
    lone_value = lone_value_problem(asked, ranks)
    return rules + model_problems(asked) + ([lone_value] if lone_value else [])

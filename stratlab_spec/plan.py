"""Derive layout, accumulation and steps from the settings, the number of processes and the data.

The launcher of a pod resolves the plan, once per start of ranks, and passes it to them in the environment. The ranks
only confirm that it belongs to their settings, and that all launchers have the same plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.mesh_rules import resolve_axes
from stratlab_spec.layout.nd_layout import Layout
from stratlab_spec.memory.fit import Choice, choose_on_device, depends_on_device
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.schedule import Schedule, build_schedule, count_micro_batches
from stratlab_spec.settings.config import Config, ConfigError

VARIABLE = "STRATLAB_PLAN"
OF_A_MACHINE = ("results", "dataset_path", "model_path", "image", "accelerator")
"""Settings from which no plan follows; paths may differ from machine to machine."""


@dataclass(frozen=True, kw_only=True)
class Plan(Schedule):
    """One run's; the same on every rank."""

    axes: Axes
    layout: Layout | None = None
    """Of strategy nd."""
    micro_batches: int
    """Micro-batches of a step on each rank: the accumulation."""
    train_samples: int
    device_bytes: int | None = None
    """By which `layout: auto` left layouts out; None = unknown, or without effect."""
    settings_sha256: str
    """Hash of the settings that it was resolved from."""

    def as_variable(self) -> str:
        """Return the value of VARIABLE."""
        return json.dumps(asdict(self))


def resolve_plan(
    config: Config,
    world_size: int,
    per_node: int,
    train_samples: int,
    device_bytes: int | None = None,
    choice: Choice | None = None,
) -> Plan:
    """Return the plan of a run of these settings.

    Args:
        device_bytes: memory of this machine's devices; None = unknown.
        choice: an earlier result of `choose_on_device`.

    Raises:
        ConfigError: naming every broken rule.
        DataMissing: the shape of the model cannot be read (nd).
    """
    layout = None
    if config.strategy == "nd":
        choice = choice or choose_on_device(config, world_size, read_shape(config), device_bytes)
        layout = choice.layout
    axes = layout.axes if layout else resolve_axes(config, world_size, per_node)
    return Plan(
        **asdict(build_schedule(config, train_samples)),
        axes=axes,
        layout=layout,
        micro_batches=count_micro_batches(config.global_batch_size, config.micro_batch_size, axes.dp),
        train_samples=train_samples,
        device_bytes=device_bytes if depends_on_device(config) else None,
        settings_sha256=_hash_settings(config),
    )


def _hash_settings(config: Config) -> str:
    settings = config.model_dump(mode="json", exclude={*OF_A_MACHINE})
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def read_plan(config: Config, world_size: int, env: Mapping[str, str]) -> Plan:
    """Return the plan that the launcher passed to this rank.

    Raises:
        ConfigError: it is missing, or belongs to other settings or another number of processes.
    """
    if not (text := env.get(VARIABLE)):
        raise ConfigError(f"{VARIABLE}: not set; start the ranks with `python -m trainer` [SL-plan-missing]")
    fields = json.loads(text)
    layout = fields["layout"]
    if layout:
        axes = Axes(**layout["axes"])
        fields["layout"] = Layout(**layout | {"axes": axes, "missing": tuple(layout["missing"])})
    plan = Plan(**fields | {"axes": Axes(**fields["axes"])})
    if plan.settings_sha256 != _hash_settings(config):
        raise ConfigError(
            "the launcher resolved the plan from other settings than this rank has; start launcher and ranks with the "
            "same TRAINER_ variables and the same version [SL-plan-other-settings]"
        )
    if plan.axes.world_size != world_size:
        raise ConfigError(
            f"the launcher planned {plan.axes.world_size} processes, and there are {world_size}; give each machine the "
            "same number of machines and of processes [SL-plan-processes]"
        )
    return plan


def confirm_plans(plans: Sequence[Plan]) -> Plan:
    """Return the plan of all ranks; if plans differ, the plan of the machines with smaller devices."""
    chosen = min(plans, key=lambda plan: plan.device_bytes or float("inf"))
    for rank, plan in enumerate(plans):
        if plan.device_bytes != chosen.device_bytes:
            plan = replace(
                plan,
                axes=chosen.axes,
                layout=chosen.layout,
                micro_batches=chosen.micro_batches,
                device_bytes=chosen.device_bytes,
            )
        if plan != chosen:
            ours, theirs = asdict(plan), asdict(chosen)
            names = [name for name in ours if ours[name] != theirs[name]]
            raise ConfigError(
                f"rank {rank}: its launcher came to another plan: {', '.join(names)} differ; start every machine with "
                "the same settings, data, memory profiles and version [SL-plan-differs]"
            )
    return chosen


def confirm_samples(plan: Plan, train_samples: int) -> None:
    """Raise an error if this rank opened other data than its launcher."""
    if train_samples != plan.train_samples:
        raise ConfigError(
            f"the launcher planned {plan.train_samples} training samples, and this rank reads {train_samples}: the "
            "data changed, or differs from machine to machine [SL-plan-samples]"
        )

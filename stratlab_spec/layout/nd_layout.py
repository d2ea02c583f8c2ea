"""Strategy nd's degrees: processes, model and dimensions -> Layout.

    dimensions   promises             8 processes         16 processes, 5 with experts
    1            data                 dp8x1               dp16x1
    2            + pipeline           pp2.dp4             pp2.dp8
    3            + tensor             pp2.dp2.tp2         pp2.dp4.tp2
    4            + sequence           pp2.dp2.tp2+sp      pp2.dp2.cp2.tp2+sp
    5            + expert             pp2.dp2.tp2+sp.ep4  pp2.dp2.cp2.tp2+sp.ep8

One dimension is plain data parallelism: every process holds the whole model, as with the strategy ddp. From two on
the data axis shards (dp_shard).

If a layout cannot keep some promises with few processes, it is degenerate and names the missing dimensions.

    python -m trainer.layout --help
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stratlab_spec.layout.axes import Axes
from stratlab_spec.layout.layout_rules import broken_layout_rules, list_undivided
from stratlab_spec.models.decoder import VIRTUAL_STAGES
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.strategies import ND_AXES

if TYPE_CHECKING:
    from stratlab_spec.models.decoder import DecoderShape

KINDS = ("data", "pipeline", "tensor", "sequence", "expert")
"""n dimensions promise the first n."""
OWN_SEQUENCE_AXIS_FROM = 16
"""Processes. Below, sequence parallelism on the tp axis is the fourth dimension and does not need processes."""
LARGEST_EP = 8
FIRST_DIMENSIONS = {"pp": 2, "tp": 3, "cp": 4}


@dataclass(frozen=True)
class Layout:
    """How the processes of a run are used."""

    axes: Axes
    sequence_parallel: bool
    """On the tp axis: between the layers each of its processes holds a part of the sequence."""
    dimensions: int
    missing: tuple[str, ...]
    """Of KINDS: promised by the number of dimensions, but of degree 1."""
    reason: str
    """Why these degrees, one line."""
    is_first: bool = True
    """Whether the settings lead to it if memory does not matter."""

    @property
    def degenerate(self) -> bool:
        """Whether its name promises more than it holds; such a run is kept out of comparisons."""
        return bool(self.missing)

    @property
    def name(self) -> str:
        """Return `pp2.dp2.tp2+sp.ep4`: all degrees above 1, outermost first; dp1 without a split.

        dp2x4 is 2 replicas of 4 shards, dp8x1 8 replicas, dp8 8 shards.
        """
        axes = self.axes
        parts = [f"pp{axes.pp}"] if axes.pp > 1 else []
        if axes.dp_replicate > 1:
            parts.append(f"dp{axes.dp_replicate}x{axes.dp_shard}")
        elif axes.dp_shard > 1:
            parts.append(f"dp{axes.dp_shard}")
        parts += [f"cp{axes.cp}"] if axes.cp > 1 else []
        parts += [f"tp{axes.tp}{'+sp' if self.sequence_parallel else ''}"] if axes.tp > 1 else []
        parts += [f"ep{axes.ep}"] if axes.ep > 1 else []
        return ".".join(parts) or "dp1"

    def as_dict(self) -> dict[str, Any]:
        """Return the layout for config.json; the degrees themselves are in its `axes`."""
        return {
            "name": self.name,
            "dimensions": self.dimensions,
            "missing": list(self.missing),
            "degenerate": self.degenerate,
            "sequence_parallel": self.sequence_parallel,
            "reason": self.reason,
        }


def resolve_layout(config: Config, world_size: int, shape: DecoderShape) -> Layout:
    """Return the layout of a run of strategy nd.

    Raises:
        ConfigError: naming every broken rule, with values that work.
    """
    dimensions = config.dimensions
    if config.layout == "auto":
        axes, reason = _choose_axes(config, world_size, shape)
    else:
        axes, reason = _given_axes(config, world_size), "degrees as given"
        if "dimensions" not in config.model_fields_set:
            dimensions = max(1, len(_kinds(axes, sequence_parallel=False)))
    layout = build_layout(config, axes, shape, reason, dimensions, is_first=True)
    if problems := broken_layout_rules(config, world_size, shape, axes, layout.sequence_parallel):
        raise ConfigError(problems)
    return layout


def count_stages(config: Config, pp: int) -> int:
    """Return stages of the pipeline over all processes; with the interleaved schedule each holds two."""
    return pp * VIRTUAL_STAGES[config.pp_schedule] if pp > 1 else 1


def build_layout(
    config: Config, axes: Axes, shape: DecoderShape, reason: str, dimensions: int = 0, is_first: bool = False
) -> Layout:
    """Return these axes as a layout.

    Args:
        dimensions: 0 = the setting's.
    """
    dimensions = dimensions or config.dimensions
    split = _splits_sequence(config, axes, dimensions, shape)
    if config.layout == "auto" or "dimensions" in config.model_fields_set:
        missing = tuple(kind for kind in KINDS[:dimensions] if kind not in _kinds(axes, split))
    else:  # without promises
        dimensions, missing = max(1, len(_kinds(axes, split))), () if _kinds(axes, split) else ("data",)
    return Layout(axes, split, dimensions, missing, reason, is_first)


def _kinds(axes: Axes, sequence_parallel: bool) -> list[str]:
    """Return the KINDS with a degree of at least 2."""
    degrees = (axes.dp, axes.pp, axes.tp, max(axes.cp, axes.tp if sequence_parallel else 1), axes.ep)
    return [kind for kind, degree in zip(KINDS, degrees, strict=True) if degree > 1]


def _splits_sequence(config: Config, axes: Axes, dimensions: int, shape: DecoderShape) -> bool:
    """Return whether the tp axis splits the sequence too. Experts need it: tp ranks must send them distinct tokens."""
    if config.sequence_parallel != "auto":
        return config.sequence_parallel == "on" and axes.tp > 1
    return axes.tp > 1 and (dimensions >= 4 or shape.experts > 0)


def _given_axes(config: Config, world_size: int) -> Axes:
    """Return the given degrees; 0 = 1, and for dp_shard the remaining processes."""
    given = {axis: getattr(config, axis) or 1 for axis in (*ND_AXES, "ep")}
    axes = Axes(**given)
    if config.dp_shard:
        return axes
    return replace(axes, dp_shard=max(1, world_size // axes.world_size))


def _choose_axes(config: Config, world_size: int, shape: DecoderShape) -> tuple[Axes, str]:
    """Give pp, tp and cp a degree of 2 each if requested and possible; dp_shard gets the remaining processes.

    ep uses no further processes. One dimension uses only dp_replicate.
    """
    plural = "process" if world_size == 1 else "processes"
    if config.dimensions == 1:
        reason = f"1D on {world_size} {plural}: dp_replicate {world_size} (plain data parallelism, nothing is sharded)"
        return Axes(dp_replicate=world_size), reason
    taken, notes, left = {"pp": 1, "tp": 1, "cp": 1}, [], world_size
    for axis, from_dimensions in FIRST_DIMENSIONS.items():
        if config.dimensions < from_dimensions:
            continue
        if obstacle := _obstacle(axis, config, world_size, left, shape, taken["tp"]):
            notes.append(f"{axis} 1 ({obstacle})")
        else:
            taken[axis], left = 2, left // 2
            notes.append(f"{axis} 2")
    axes = find_ep(config, shape, Axes(dp_shard=left, **taken))
    notes.append(f"dp_shard {left} (what is left)")
    if config.dimensions == 5 and shape.experts:
        pool = axes.dp_shard * axes.cp * axes.tp
        notes.append(
            f"ep {axes.ep} ({shape.experts} experts, dp_shard x cp x tp = {pool}, at most {LARGEST_EP})"
        )
    return axes, f"{config.dimensions}D on {world_size} {plural}: {', '.join(notes)}"


def find_ep(config: Config, shape: DecoderShape, axes: Axes) -> Axes:
    """Return the axes with the experts distributed among them, up to their number; unchanged with fewer than 5
    dimensions.
    """
    if config.dimensions < 5 or not shape.experts or "tp" not in shape.dims:
        return axes
    pool = axes.dp_shard * axes.cp * axes.tp
    return replace(
        axes, ep=max(n for n in range(1, LARGEST_EP + 1) if pool % n == 0 and shape.experts % n == 0)
    )


def _obstacle(axis: str, config: Config, world_size: int, left: int, shape: DecoderShape, tp: int) -> str:
    """Why `axis` cannot be 2; "" = it can."""
    if axis not in shape.dims:
        return f"transformers does not plan {axis} for model_type {shape.family!r}"
    if axis == "pp" and config.dimensions == 5 and shape.experts and world_size == 2:
        return "on 2 processes a pipeline would leave the experts only one"
    if axis == "cp" and world_size < OWN_SEQUENCE_AXIS_FROM:
        return f"from {OWN_SEQUENCE_AXIS_FROM} processes on; below, tp splits the sequence"
    if left % 2:
        return "1 process is left" if left == 1 else f"2 does not divide the {left} processes left"
    if axis == "pp":
        stages = count_stages(config, 2)
        return (
            f"{stages} stages need as many layers, there are {shape.layers}" if stages > shape.layers else ""
        )
    if axis == "tp":
        odd = list_undivided(shape, 2)
        return f"2 does not divide {', '.join(odd)}" if odd else ""
    if config.seq_len % (2 * tp):
        return f"{2 * tp} does not divide seq_len={config.seq_len}"
    if config.cp_method == "ulysses" and shape.heads // tp % 2:
        return f"2 does not divide heads/tp={shape.heads // tp}"
    return ""

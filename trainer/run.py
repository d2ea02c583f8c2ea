"""A run as it was worked out, once: settings, processes, layout, precision, plan, folder. The rest is given this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratlab_spec.layout.mesh_rules import mesh_names, resolve_axes
from stratlab_spec.layout.parallel_dims import Axes, Layout
from stratlab_spec.memory.fit import resolve_on_device
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.plan import Plan, build_plan
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from trainer.distributed.world import Precision, World, build_mesh
from trainer.hang_detection.heartbeat import Pulse

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What the processes of a run are for."""

    axes: Axes
    layout: Layout | None = None
    """Of the strategy nd."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What no part of a run works out for itself."""

    config: Config
    world: World
    placement: Placement
    precision: Precision
    mesh: DeviceMesh
    """Of this strategy's axes over all processes."""
    plan: Plan
    folder: RunDirectory
    compile_backend: str
    """Of torch.compile, where the setting `compile` asks for it."""
    pulse: Pulse
    """Where this rank says that it goes on."""

    @property
    def axes(self) -> Axes:
        return self.placement.axes

    @property
    def writes(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.world.rank == 0


def resolve_placement(config: Config, world: World, device_bytes: int | None = None) -> Placement:
    """What each process is for.

    Args:
        device_bytes: memory of the smallest device of the run, by which `layout: auto` leaves layouts out; the same on
            every rank, or their meshes differ. None = not known, it makes no difference.

    Raises:
        ConfigError: naming every broken rule.
        DataMissing: the shape of the model is not to be had (nd).
    """
    if config.strategy == "nd":
        layout = resolve_on_device(config, world.size, read_shape(config), device_bytes)
        return Placement(axes=layout.axes, layout=layout)
    return Placement(axes=resolve_axes(config, world.size, world.local_size))


def build_run(
    config: Config,
    world: World,
    placement: Placement,
    precision: Precision,
    train_samples: int,
    compile_backend: str = "inductor",
    pulse: Pulse | None = None,
) -> Run:
    """The run on this rank; the process group must exist.

    Args:
        compile_backend: `aot_eager` traces and differentiates like inductor and generates no code, for tests.
        pulse: None = one that nobody sees.
    """
    return Run(
        config=config,
        world=world,
        placement=placement,
        precision=precision,
        mesh=build_mesh(placement.axes, world.device_type, mesh_names(config)),
        plan=build_plan(config, train_samples),
        folder=RunDirectory(config.results, config.comparison, config.run),
        compile_backend=compile_backend,
        pulse=pulse or Pulse(None, world.rank),
    )

"""A resolved run: settings, processes, plan, precision and folder, as every other part receives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratlab_spec.layout.mesh_rules import mesh_names
from stratlab_spec.layout.parallel_dims import Axes
from stratlab_spec.plan import Plan
from stratlab_spec.run_directory import RunDirectory
from stratlab_spec.settings.config import Config
from trainer.distributed.world import Precision, World, build_mesh
from trainer.hang_detection.heartbeat import Pulse

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Run:
    """Facts of a run that its parts share and do not derive themselves."""

    config: Config
    world: World
    precision: Precision
    mesh: DeviceMesh
    """Of this strategy's axes over all processes."""
    plan: Plan
    folder: RunDirectory
    compile_backend: str
    """Of torch.compile, if the setting `compile` is on."""
    pulse: Pulse
    """This rank's heartbeat."""

    @property
    def axes(self) -> Axes:
        return self.plan.axes

    @property
    def writes(self) -> bool:
        """Return whether this rank writes the files that are written once."""
        return self.world.rank == 0


def build_run(
    config: Config,
    world: World,
    plan: Plan,
    precision: Precision,
    compile_backend: str = "inductor",
    pulse: Pulse | None = None,
) -> Run:
    """Return the run on this rank; the process group must exist.

    Args:
        compile_backend: `aot_eager` traces and differentiates like inductor and generates no code, for tests.
        pulse: None = a private one.
    """
    return Run(
        config=config,
        world=world,
        precision=precision,
        mesh=build_mesh(plan.axes, world.device_type, mesh_names(config)),
        plan=plan,
        folder=RunDirectory(config.results, config.comparison, config.run),
        compile_backend=compile_backend,
        pulse=pulse or Pulse(None, world.rank),
    )

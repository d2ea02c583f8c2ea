"""What every tp rank holds whole."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate


def replicate_parameters(module: nn.Module, mesh: DeviceMesh) -> None:
    """Each parameter of the module itself as a DTensor that is whole on every rank of `mesh`, in place."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        whole = DTensor.from_local(parameter.data, mesh, [Replicate()], run_check=False)
        module.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))

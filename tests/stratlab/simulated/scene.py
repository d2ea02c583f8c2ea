"""What a simulated team of ranks does: the knobs of the traces. All times in whole nanoseconds."""

from dataclasses import dataclass
from typing import Literal

FORWARD_KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n<float>",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)",
    "void at::native::vectorized_layer_norm_kernel<float>(int, float)",
    "void at::native::vectorized_elementwise_kernel<4, gelu>(int)",
)
OPTIMIZER_KERNEL = "void at::native::multi_tensor_apply_kernel<FusedAdamW>(int)"
NCCL = "ncclDevKernel_{}(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Scene:
    """One training: who takes part, how long everything takes, what waits for what.

    Axes are given outermost first, as a device mesh lays out the ranks; their sizes multiply to `ranks`. None =
    all ranks on `dp_replicate` (strategy ddp) or on `dp_shard` (fsdp). fsdp gathers and scatters on `dp_shard` and
    reduces on `dp_replicate` where that is larger than 1; `tp` reduces after every layer, on the critical path;
    `pp` is GPipe: all forward micro-batches, then all backward ones.
    """

    ranks: int = 2
    steps: int = 3
    first_step: int = 10
    layers: int = 4
    seed: int = 0
    strategy: Literal["ddp", "fsdp"] = "ddp"
    axes: tuple[tuple[str, int], ...] | None = None
    micro_batches: int = 1
    kernels: tuple[str, ...] = FORWARD_KERNELS
    kernel_ns: int = 60_000  # mean of one kernel of the forward pass; twice as long backward
    jitter: float = 0.5  # durations are drawn from 1 - jitter to 1 + jitter of their mean
    gaps_ns: tuple[int, ...] = (0, 20, 900)  # drawn between kernels that wait in the queue
    launch_ns: int = 6_000  # host time per kernel
    optimizer_kernels: int = 4
    bucket_layers: int = 2  # ddp: layers per all-reduce
    layer_bytes: int = 4 << 20  # gradients of one layer
    comm_ns: int = 120_000  # transfer of one layer's bytes
    link: float = 1.0  # factor on all transfer times
    overlap: float = 1.0  # share of the communication that may run under compute: 1 = as soon as possible
    slow: float = 1.0  # factor on the last rank's kernels
    data_ns: int = 150_000  # wait for data before each micro-batch
    copy_bytes: int = 1 << 20  # input of one micro-batch
    copy_ns: int = 50_000
    copy_exposed: bool = True  # False: on a stream of its own, for the next micro-batch
    loss_copy: bool = True  # 4 bytes to the host after the optimizer
    sync: bool = True  # the host waits for the GPU at the end of a step
    host_ns: int = 8_000  # host work after that
    skew_ns: int = 0  # the last rank's clock is ahead by this much
    origin_ns: int = 1_000_000_000_000_000  # of the written times
    gpu_labels: bool = True  # gpu_user_annotation, as Kineto projects them
    arrows: bool = True  # flow events from launches to GPU events
    memory: bool = True  # [memory] instants
    host_name: str = "simulated"

    @property
    def mesh(self):
        return self.axes or (("dp_replicate" if self.strategy == "ddp" else "dp_shard", self.ranks),)

    @property
    def stages(self):
        """Pipeline stages; 1 without a pipeline."""
        return dict(self.mesh).get("pp", 1)

    def build_groups(self):
        """The groups of ranks of each axis of more than one rank."""
        groups = {}
        inner = self.ranks
        for axis, size in self.mesh:
            inner //= size
            firsts = [r for r in range(self.ranks) if (r // inner) % size == 0]
            if size > 1:
                groups[axis] = [tuple(first + i * inner for i in range(size)) for first in firsts]
        assert inner == 1, f"the axes {self.mesh} do not multiply to {self.ranks}"
        return groups

"""Traces of real GPUs that this lab did not make: tests/data/traces, with their origin and licence in its README."""

import io
import lzma
import tarfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "traces"
SINGLE = (
    "in_flight_a100_rank0",
    "resnet_checkpointing_mi300x",
    "resnet50_2021_v100",
    "nccl_a100",
    "event_sync_a100",
    "triton_a100",
    "mi250_rocm62",
)
TEAM = "dlrm_8xv100"
NAMES = (*SINGLE, TEAM)
ALONE = (  # what one test alone asks of
    "alltoall_sendrecv_a100_rank3",
    "launches_without_kernels",
    "mtia_hccl_rank0",
    "resnet50_dataloader_v100",
    "sglang_prefilldecode_mi300x",
    "timesformer_mi300x",
)
EVERY = (*NAMES, *ALONE)


def unpack(name, folder):
    """The files of one set, one per rank, as the profiler wrote them; a single one is rank 0."""
    folder.mkdir(parents=True, exist_ok=True)
    if name != TEAM:
        path = folder / f"{name}.json"
        path.write_bytes(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))
        return {0: path}
    files = {}
    with tarfile.open(fileobj=io.BytesIO((FOLDER / f"{name}.tar.xz").read_bytes()), mode="r:xz") as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content is not None:
                rank = int(Path(member.name).name.removeprefix("worker").partition("_")[0])
                files[rank] = folder / f"rank{rank}_trace.json"
                files[rank].write_bytes(content.read())
    return dict(sorted(files.items()))

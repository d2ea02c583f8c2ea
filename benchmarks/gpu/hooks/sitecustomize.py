"""Leaves what the allocator counted when a rank of a measured run ends; found by Python through PYTHONPATH."""

import atexit
import json
import os
import sys

COUNTED = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


def _write() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    stats = torch.cuda.memory_stats()
    facts = {name: stats.get(name, 0) for name in COUNTED}
    for kind in ("allocated", "reserved"):
        facts[f"peak_{kind}_gib"] = stats.get(f"{kind}_bytes.all.peak", 0) / 2**30
    free, total = torch.cuda.mem_get_info()
    facts["reserved_at_end_gib"] = torch.cuda.memory_reserved() / 2**30
    facts["device_used_at_end_gib"] = (total - free) / 2**30
    with open(os.path.join(os.environ["STRATLAB_ALLOCATOR"], f"{os.getpid()}.json"), "w") as file:
        json.dump({"rank": os.environ.get("RANK"), **facts}, file)


if os.environ.get("STRATLAB_ALLOCATOR"):
    atexit.register(_write)

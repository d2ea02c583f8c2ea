"""Trace events in Kineto's own formatting. Times in ns; written in us with three decimals, exactly."""

import json

HOST, BACKWARD_THREAD, GPU = 4000, 4001, 0
COMPUTE_STREAM, COMM_STREAM, COPY_STREAM, P2P_STREAM = 7, 20, 21, 22
DTYPE, ELEMENT_BYTES = "Float", 4


def build_head(scene, rank):
    groups = [
        {"pg_name": str(number), "pg_desc": f"mesh_{axis}", "backend_config": "cuda:nccl", "pg_size": len(ranks),
         "ranks": list(ranks)}
        for number, (axis, ranks) in enumerate(list_groups(scene), 1)
        if rank in ranks
    ]  # fmt: skip
    everyone = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cuda:nccl",
        "pg_size": scene.ranks,
    }
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "simulated GPU", "numSms": 132, "totalGlobalMem": 80 << 30}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": scene.ranks,
            "pg_count": 1 + len(groups),
            "pg_config": [everyone | {"ranks": list(range(scene.ranks))}, *groups],
        },
        "cuda_runtime_version": 12080,
        "profile_memory": int(scene.memory),
        "host_name": scene.host_name,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
    }
    lines = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in head.items())
    return f'{{\n{lines}  "traceEvents": [\n'


def list_groups(scene):
    """All process groups with their axis; the number of a group is its place here, from 1 on."""
    return [(axis, ranks) for axis, groups in scene.build_groups().items() for ranks in groups]


def build_metadata(rank):
    named = [
        ("process_name", HOST, 0, {"name": "python"}),
        ("process_labels", HOST, 0, {"labels": "CPU"}),
        ("process_sort_index", HOST, 0, {"sort_index": HOST}),
        ("process_name", GPU, 0, {"name": "python"}),
        ("process_labels", GPU, 0, {"labels": "GPU 0"}),
        ("thread_name", HOST, HOST, {"name": f"thread {HOST} (pt_main_thread) rank {rank}"}),
        ("thread_name", HOST, BACKWARD_THREAD, {"name": f"thread {BACKWARD_THREAD} (pt_autograd_0)"}),
        *(("thread_name", GPU, s, {"name": f"stream {s} "}) for s in (COMPUTE_STREAM, COMM_STREAM, COPY_STREAM)),
    ]  # fmt: skip
    return "".join(
        f'  {{\n    "name": "{name}", "ph": "M", "ts": 0.000, "pid": {pid}, "tid": {tid},\n'
        f'    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }},\n'
        for name, pid, tid, args in named
    )


def build_tail(rank, at):
    return (
        f'  {{\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", '
        f'"ts": {at / 1000:.3f}\n  }}\n  ],\n  "traceName": "rank{rank}_trace.json"\n}}\n'
    )


def build_event(cat, name, pid, tid, start, end, args):
    """One event with a duration. `name` is escaped already, `args` is the inside of a JSON object."""
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {start / 1000:.3f}, "dur": {(end - start) / 1000:.3f},\n'
        f'    "args": {{\n      {args}\n    }}\n  }},\n'
    )


def build_arrow(number, tid, issued, stream, start):
    return (
        f'  {{\n    "ph": "s", "id": {number}, "pid": {HOST}, "tid": {tid}, "ts": {issued / 1000:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g"\n  }},\n'
        f'  {{\n    "ph": "f", "id": {number}, "pid": {GPU}, "tid": {stream}, "ts": {start / 1000:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n'
    )


def build_memory(at, change, allocated, reserved):
    """One `[memory]` instant; bytes."""
    return (
        f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
        f'    "pid": {HOST}, "tid": {HOST}, "ts": {at / 1000:.3f},\n'
        f'    "args": {{\n      "Total Reserved": {reserved}, "Total Allocated": {allocated}, "Bytes": {change}, '
        f'"Addr": 140000000000000, "Device Id": 0, "Device Type": 1, "Ev Idx": 0\n    }}\n  }},\n'
    )


def build_message(collective, number, axis, ranks, size, gathered):
    """The facts of one collective, as NCCL kernels and record_param_comms carry them; sizes in elements."""
    return (
        f'"Collective name": "{collective}", "In msg nelems": {size}, "Out msg nelems": {gathered}, '
        f'"Group size": {len(ranks)}, "dtype": "{DTYPE}", "In split size": "[]", "Out split size": "[]", '
        f'"Process Group Name": "{number}", "Process Group Description": "mesh_{axis}", '
        f'"Process Group Ranks": "[{", ".join(map(str, ranks))}]"'
    )

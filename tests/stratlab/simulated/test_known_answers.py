"""The analysis against the known answers of simulated teams: equal to the nanosecond, whatever the scene."""

from collections import Counter

import pytest

from stratlab.analysis.measure import measure_traces
from stratlab.traces.trace import load_trace
from tests.stratlab.simulated.bookkeeping import PHASES
from tests.stratlab.simulated.scene import Scene
from tests.stratlab.simulated.team import simulate

HYBRID = (("dp_replicate", 2), ("dp_shard", 2))
PIPELINE = (("pp", 2), ("dp_replicate", 2))
SCENES = {
    "one rank": Scene(ranks=1),
    "late rank": Scene(ranks=4, slow=1.6, seed=2),
    "skewed clock": Scene(slow=1.2, skew_ns=70_000_003, seed=3, origin_ns=7_700_000_123_456_789),
    "accumulation": Scene(micro_batches=3, data_ns=700_000, sync=False, slow=1.5, copy_exposed=False),
    "nothing overlaps": Scene(overlap=0, link=3.0, bucket_layers=1),
    "host-bound": Scene(launch_ns=90_000, sync=False),
    "hsdp": Scene(ranks=4, strategy="fsdp", axes=HYBRID, overlap=0.5, jitter=0.9, layers=6),
    "tp": Scene(ranks=4, axes=(("dp_replicate", 2), ("tp", 2)), overlap=0, slow=1.4),
    "pipelines": Scene(ranks=4, axes=PIPELINE, micro_batches=4, layers=8, slow=1.3, sync=False),
}
SAME = {  # column -> known answer
    **{name: name for name in ("compute", "comm", "comm_overlap", "comm_exposed", "copy", "copy_exposed", "idle")},
    **{name: name for name in ("straggler", "bubble", "kernel_wait", "other_idle")},
    "data_wait": "data",
    "host_wait": "host",
    "launch_wait": "launch",
}  # fmt: skip


def to_ns(row, name):
    value = getattr(row, f"{name}_ms") * 1e6
    assert value == pytest.approx(round(value), abs=1e-3)
    return round(value)


def total(parts, name):
    value = getattr(parts, name)
    return value.total() if isinstance(value, Counter) else value


@pytest.mark.parametrize("name", SCENES)
def test_the_analysis_equals_the_known_answers(name, tmp_path):
    truth = simulate(tmp_path, SCENES[name])
    measures = measure_traces(truth.files, dict(truth.scene.mesh))
    assert not measures.findings and [rank.rank for rank in measures.ranks] == [*truth.files]
    assert {(r.backend, r.host, r.source) for r in measures.ranks} == {("nccl", truth.scene.host_name, "gpu")}
    check_steps(truth, measures.ranks)
    for rank in measures.ranks:
        check_parts(truth, rank)
        check_kernels_copies_and_memory(truth, rank)
        trace = load_trace(truth.files[rank.rank])
        assert (len(trace.ts), trace.left_out) == (truth.ranks[rank.rank].slices, 0), "every event is read"


def check_steps(truth, ranks):
    rows = {(row.rank, row.step): row for rank in ranks for row in rank.rows}
    phases = {(row.rank, row.step, row.phase): row for rank in ranks for row in rank.phase_rows}
    assert list(rows) == list(truth.steps)
    for key, row in rows.items():
        known = truth.steps[key]
        ours = {name: to_ns(row, name) for name in ("step", "host_step", "data", *SAME)}
        whole = {"step": known.whole, "host_step": known.host_ns, "data": known.data_ns}
        assert ours == whole | {a: total(known, b) for a, b in SAME.items()}
        for phase in ("forward", "backward", "optimizer"):
            assert to_ns(row, phase) == known.issued[phase]
        for phase in (*PHASES.values(), "other"):
            span = phases.get((*key, phase))
            if span is None:
                assert known.sum_phase(phase, "whole") == 0
                continue
            assert to_ns(span, "span") == known.sum_phase(phase, "whole")
            found = {name: to_ns(span, name) for name in SAME}
            assert found == {a: known.sum_phase(phase, b) for a, b in SAME.items()}, (key, phase)


def check_parts(truth, rank):
    known = Counter()
    steps = [step for (of, _), step in truth.steps.items() if of == rank.rank]
    for step in steps:
        for (part, collective, axis), ns in step.build_parts().items():
            known["straggler", "", ""] += ns if part == "straggler" else 0
            known[part, collective or "", axis or ""] += ns if part != "straggler" else 0
    assert {k: ns for k, ns in rank.parts_ns.items() if ns} == {k: ns for k, ns in known.items() if ns}
    assert sum(rank.parts_ns.values()) == sum(step.whole for step in steps)


def check_kernels_copies_and_memory(truth, rank):
    known = truth.ranks[rank.rank]
    assert {row.name: (row.count, round(row.sum_ms * 1e6)) for row in rank.kernels} == known.kernels
    copies = {row.kind: (row.count, row.bytes, round(row.total_ms * 1e6)) for row in rank.copies}
    assert copies == known.copies
    for copy in rank.copies:
        _, size, ns = known.copies[copy.kind]
        assert copy.gbps == pytest.approx(size / ns)
    kernels = sum(count for name, (count, _) in known.kernels.items() if not name.startswith("Memcpy"))
    assert rank.durations.in_steps == sum(rank.durations.kernels) == kernels
    assert sum(rank.durations.copy) == sum(count for count, _, _ in known.copies.values())
    device = [point for point in rank.memory if point.device != "cpu"]
    assert max(p.allocated_mib for p in device) == known.peak_allocated_bytes / 2**20
    assert max(p.reserved_mib or 0 for p in device) == known.peak_reserved_bytes / 2**20

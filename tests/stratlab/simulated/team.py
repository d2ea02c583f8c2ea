"""GPU traces of a whole team with known answers: `simulate(folder, Scene(...))` writes one file per rank.

All ranks are simulated together, so a straggler, a slower link, a bubble or a skewed clock has the effect on the others
that it would have. The traces are a stand-in for what torch's profiler writes on GPUs; what they say is exact."""

from contextlib import ExitStack

from tests.stratlab.simulated.bookkeeping import (
    RankTruth,
    StepTruth,
    Truth,
    build_rank_truth,
    build_step_truths,
)
from tests.stratlab.simulated.kineto_text import (
    BACKWARD_THREAD,
    COMPUTE_STREAM,
    COPY_STREAM,
    HOST,
    build_tail,
)
from tests.stratlab.simulated.links import ACTIVATION_BYTES, Links, apply_wait, find_ready
from tests.stratlab.simulated.member import Member
from tests.stratlab.simulated.scene import OPTIMIZER_KERNEL, Scene

OPS = ("aten::linear", "aten::scaled_dot_product_attention", "aten::layer_norm", "aten::gelu")
PARAMETER_BYTES = 256 << 20


class Team:
    """All ranks, and what of them belongs together."""

    def __init__(self, scene):
        self.scene = scene
        self.members = [Member(scene, rank) for rank in range(scene.ranks)]
        self.links = Links(scene)
        stage_of = {r: i for _, ranks in self.links.of("pp") for i, r in enumerate(ranks)}
        self.stages = [
            [m for m in self.members if stage_of.get(m.rank, 0) == stage] for stage in range(scene.stages)
        ]
        self.layers = scene.layers // scene.stages
        for member in self.members:
            member.allocate(PARAMETER_BYTES)

    def run_step(self, step):
        """Simulates one step; the host's begin and end of it per rank."""
        begins = {m.rank: m.cpu for m in self.members}
        if self.scene.stages > 1:
            self._run_pipeline()
        else:
            for micro in range(self.scene.micro_batches):
                last = micro == self.scene.micro_batches - 1
                self._load(self.members)
                self._forward(self.members)
                self._backward(self.members, reduces=last or self.scene.strategy == "fsdp")
        hosts = {}
        for member in self.members:
            self._optimize(member)
            begin, end = begins[member.rank], member.cpu
            member.label(f"## Training Step {step} ##", begin, end)
            member.label(f"ProfilerStep#{step - self.scene.first_step + 1}", begin - 1_000, end + 1_000)
            hosts[member.rank] = begin, end
            member.cpu += 3_000
        return hosts

    def _run_pipeline(self):
        """GPipe. In this order everything a stage waits for has been simulated when it is its turn."""
        micro_batches = range(self.scene.micro_batches)
        for stage in self.stages:
            self._load(stage)
        for _ in micro_batches:
            for number, stage in enumerate(self.stages):
                if number:
                    self.links.pass_on(self.stages[number - 1], stage)
                self._forward(stage)
        for micro in micro_batches:
            for number in reversed(range(len(self.stages))):
                if number + 1 < len(self.stages):
                    self.links.pass_on(self.stages[number + 1], self.stages[number])
                self._backward(self.stages[number], reduces=micro == self.scene.micro_batches - 1)

    def _load(self, members):
        scene = self.scene
        for member in members:
            begin = member.cpu
            member.cpu += scene.data_ns
            stream = COMPUTE_STREAM if scene.copy_exposed else COPY_STREAM
            if scene.copy_bytes:
                member.run_copy("HtoD", scene.copy_bytes, scene.copy_ns, stream)
            member.label("## Data Loading ##", begin)

    def _forward(self, members):
        begins = [m.cpu for m in members]
        apply_wait(members, self._gather(members, -1))
        for layer in range(self.layers):
            self._run_layer(members, layer, 1, ACTIVATION_BYTES)
        for member, begin in zip(members, begins, strict=True):
            member.label("## Forward Pass ##", begin)

    def _backward(self, members, reduces):
        begins = [m.cpu for m in members]
        late = []  # layers per collective that waits for the end of the backward pass
        for member in members:
            member.tid = BACKWARD_THREAD
        for layer in range(self.layers):
            self._run_layer(members, layer, 2, -ACTIVATION_BYTES)
            if reduces and ((layer + 1) % self._bucket == 0 or layer + 1 == self.layers):
                size = layer % self._bucket + 1
                if self._is_early(layer):
                    self._reduce(members, size)
                else:
                    late.append(size)
        for size in late:
            self._reduce(members, size)
        for member, begin in zip(members, begins, strict=True):
            member.tid = HOST
            member.label("## Backward Pass ##", begin)

    def _reduce(self, members, layers):
        after = find_ready(members)
        if self.scene.strategy == "fsdp":
            after |= self.links.run("reduce_scatter", "dp_shard", members, after, layers)
        self.links.run("all_reduce", "dp_replicate", members, after, layers)

    def _optimize(self, member):
        scene = self.scene
        begin = member.cpu
        member.free[COMPUTE_STREAM] = max(member.free.values())
        for _ in range(scene.optimizer_kernels):
            member.run_kernel(OPTIMIZER_KERNEL, "aten::_fused_adamw_", scene.kernel_ns)
        member.label("## Optimizer Step ##", begin)
        if scene.loss_copy:
            member.run_copy("DtoH", 4, 1_200, COMPUTE_STREAM)
        if scene.sync:
            member.wait_for_gpu()
        member.cpu += scene.host_ns

    def _run_layer(self, members, layer, factor, memory_bytes):
        """The next layer's parameters are gathered under this one, or after it."""
        scene, early = self.scene, self._is_early(layer)
        gathered = self._gather(members, layer) if early else {}
        for member in members:
            for i, name in enumerate(scene.kernels):
                op = OPS[i % len(OPS)] if factor == 1 else "autograd::engine::evaluate_function: MmBackward0"
                member.run_kernel(name if factor == 1 else f"{name}_backward", op, factor * scene.kernel_ns)
            member.allocate(memory_bytes)
        apply_wait(members, self.links.run("all_reduce", "tp", members, find_ready(members)))
        apply_wait(members, gathered if early else self._gather(members, layer))

    def _gather(self, members, layer):
        """The parameters of the layer after this one; when they are there."""
        if self.scene.strategy != "fsdp" or layer + 1 == self.layers:
            return {}
        return self.links.run("all_gather", "dp_shard", members, find_ready(members))

    def _is_early(self, layer):
        """Spreads the share that may overlap evenly over the layers."""
        bucket = layer // self._bucket
        return int((bucket + 1) * self.scene.overlap) > int(bucket * self.scene.overlap)

    @property
    def _bucket(self):
        return self.scene.bucket_layers if self.scene.strategy == "ddp" else 1


__all__ = ["RankTruth", "Scene", "StepTruth", "Truth", "simulate", "stream"]


def simulate(folder, scene):
    """Writes `rank{r}_trace.json` for every rank, and says what they must give."""
    folder.mkdir(parents=True, exist_ok=True)
    team = Team(scene)
    files = {rank: folder / f"rank{rank}_trace.json" for rank in range(scene.ranks)}
    hosts = {rank: [] for rank in files}
    with ExitStack() as stack:
        opened = {rank: stack.enter_context(open(path, "w")) for rank, path in files.items()}
        for step in range(scene.first_step, scene.first_step + scene.steps):
            for rank, span in team.run_step(step).items():
                hosts[rank].append(span)
                opened[rank].write(team.members[rank].give_text())
        for member in team.members:
            opened[member.rank].write(build_tail(member.rank, member.cpu + member.origin))
    steps = {
        (member.rank, scene.first_step + i): truth
        for member in team.members
        for i, truth in enumerate(build_step_truths(member, hosts[member.rank], scene.stages > 1))
    }
    return Truth(scene, files, steps, {member.rank: build_rank_truth(member) for member in team.members})


def stream(scene):
    """The files' text step by step, for sizes at which neither text nor truth fit the memory: the pieces of all ranks,
    and nothing of them is kept."""
    team = Team(scene)
    for step in range(scene.first_step, scene.first_step + scene.steps):
        team.run_step(step)
        yield {member.rank: member.give_text() for member in team.members}
        for member in team.members:
            member.work.clear()
            member.labels.clear()
    yield {member.rank: build_tail(member.rank, member.cpu + member.origin) for member in team.members}

"""What is compared with one process: compositions of axes, and the other strategies, on tiny decoders.

A case is a line: model, degrees, and what differs from the plain run. `pp2.dp2.tp2+sp` reads: two stages of two shards
of two tensor ranks with sequence parallelism; dp = dp_shard, rep = dp_replicate.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from tests.parity.suite import EXACT, Gates
from tests.parity_llm.models import FORMS, ROWS, SEQ_LEN

STEPS, RATE, WEIGHT_DECAY, CLIP = 3, 1e-3, 0.01, 1.0
TEACHER = "teacher"
"""Among the models."""
DISTILLED = {"distill_temperature": 3.0, "distill_alpha": 0.7}
AXES = {"pp": "pp", "rep": "dp_replicate", "dp": "dp_shard", "cp": "cp", "tp": "tp", "ep": "ep"}


# bf16 keeps 8 bits, and where ranks add partial sums of rounded products the last of them differ.
BF16 = Gates(loss=3e-3, grad_norm=4e-2, gradient=8e-2)
# With experts a router that is nearly undecided sends a token elsewhere, and its whole answer with it: an expert that
# has few tokens then has another gradient, which says nothing about the strategy. So gradients are compared where each
# token goes where the reference sent it (`routed_alike`), and where it goes by itself the losses and norms alone. Each
# gate is three times the largest difference seen: loss, norm, gradient 2.6e-3, 4.5e-3 by itself; 9e-4, 1.4e-3, 2.4e-3
# alike; 6e-4, 1.4e-3, 1.4e-2 where answers are rounded once more before they travel, or tp ranks add up.
BF16_EXPERTS = Gates(loss=8e-3, grad_norm=1.5e-2, gradient=None)
BF16_ROUTED_ALIKE = Gates(loss=3e-3, grad_norm=5e-3, gradient=8e-3)
BF16_TRAVELLED = Gates(loss=3e-3, grad_norm=5e-3, gradient=4e-2)


@dataclass(frozen=True)
class Case:
    """One run that has to equal its reference.

    Attributes:
        mesh: degrees as in the module's docstring, for the strategy nd; other strategies take their own.
        packed: several documents in a row.
        varlen: attention as on a GPU, by a stand-in for torch's kernel (tests/trainer/models/varlen_stand_in.py).
        micro: rows of a micro-batch; 0 = what the mesh needs.
        taught: by the model `teacher`, beside the labels.
        routed_alike: each token goes to the experts to which the reference sent it.
        settings: further settings of the run.
    """

    model: str
    mesh: str = ""
    strategy: str = "nd"
    world: int = 0
    packed: bool = False
    varlen: bool = False
    micro: int = 0
    taught: bool = False
    routed_alike: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    gates: Gates = EXACT

    @property
    def degrees(self) -> dict[str, int]:
        """Setting -> size, of the axes that the mesh names."""
        parts = re.findall(r"(pp|rep|dp|cp|tp|ep)(\d+)", self.mesh)
        return {AXES[name]: int(size) for name, size in parts}

    @property
    def world_size(self) -> int:
        product = self.world or 1
        for axis, size in self.degrees.items():
            product *= size if axis != "ep" else 1
        return product

    @property
    def sequence_parallel(self) -> bool:
        return "+sp" in self.mesh

    @property
    def lora(self) -> bool:
        return bool(self.settings.get("lora_rank"))

    @property
    def variant(self) -> str:
        """What is not plain about it, in words."""
        flags = [name for name in ("packed", "varlen", "taught") if getattr(self, name)]
        micro = [f"micro={self.micro}"] if self.micro else []
        routed = ["routed alike"] if self.routed_alike else []
        words = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([*flags, *micro, *routed, *words])

    @property
    def name(self) -> str:
        parts = (self.strategy, self.mesh or str(self.world_size), self.model, self.variant)
        return " ".join(part for part in parts if part)

    @property
    def labels(self) -> dict[str, Any]:
        names = ("strategy", "mesh", "sequence_parallel", "model", "world_size", "variant")
        return {name: getattr(self, name) for name in names}

    @property
    def reference(self) -> str:
        """File of what it has to equal: the plain model, or the strategy single with the same numerics."""
        numerics = [f"{n}={self.settings[n]}" for n in ("precision", "lora_rank") if n in self.settings]
        taught = ["taught"] if self.taught else []
        return ", ".join([self.model, "packed" if self.packed else "padded", *taught, *numerics])

    def config(self) -> dict[str, Any]:
        """All settings but run, model_path and optimizer."""
        degrees = self.degrees
        dp = degrees.get("dp_replicate", 1) * degrees.get("dp_shard", self.world or 1)
        rows, pp = ROWS // dp, degrees.get("pp", 1)
        nd: dict[str, Any] = dict(degrees)
        if self.strategy == "nd":
            sizes = {axis: degrees.get(axis, 1) for axis in AXES.values()}
            nd = {"layout": "given", "sequence_parallel": "on" if self.sequence_parallel else "off", **sizes}
        return {
            "task": "text",
            "strategy": self.strategy,
            "init": "pretrained",
            "seq_len": SEQ_LEN,
            "packing": self.packed,
            "global_batch_size": ROWS,
            "micro_batch_size": self.micro or rows // pp,
            "precision": "fp32",
            "lr": RATE,
            "weight_decay": WEIGHT_DECAY,
            "clip_norm": CLIP,
            **nd,
            **(DISTILLED if self.taught else {}),
            **self.settings,
        }


CP_GATHER = {"cp_method": "allgather"}
RECOMPUTED = {"activation_checkpointing": "blocks"}
SELECTIVE = {"activation_checkpointing": "selective"}
INTERLEAVED = {"pp_schedule": "interleaved1f1b"}
GPIPE = {"pp_schedule": "gpipe"}
IN_BF16 = {"precision": "bf16"}
LORA = {"lora_rank": 4}

DENSE = (
    # one kind
    Case("tied", "dp2"),
    Case("tied", "dp2", packed=True, micro=2),
    Case("tied", "dp2", micro=2, settings={"accumulate": "whole", "reshard_after_forward": "off"}),
    Case("untied", "rep2.dp2", micro=2, settings={"accumulate": "whole", "prefetch_blocks": 2}),
    Case("untied", "dp2", packed=True, micro=2, settings=SELECTIVE),
    Case("untied", "rep2"),
    Case("tied", "tp2"),
    Case("tied", "tp2+sp", packed=True, settings=SELECTIVE),
    Case("untied", "pp2", settings={"activation_checkpointing": "every_2"}),
    Case("tied", "tp2+sp", packed=True),
    Case("untied", "tp2+sp", settings=RECOMPUTED),
    Case("untied", "cp2"),
    Case("tied", "cp2", packed=True),
    Case("tied", "cp2", packed=True, settings=CP_GATHER),
    Case("tied", "pp2"),
    Case("untied", "pp2", packed=True, micro=2, settings=GPIPE),
    Case("4 layers", "pp3", micro=2),
    # two
    Case("tied", "rep2.dp2", packed=True),
    Case("tied", "pp2.dp2"),
    Case("tied", "dp2.tp2", packed=True),
    Case("tied", "dp2.tp2+sp"),
    Case("tied", "cp2.dp2", packed=True, settings=CP_GATHER),
    Case("tied", "pp2.tp2+sp", packed=True, settings=RECOMPUTED),
    Case("4 layers", "pp2.tp2", packed=True, micro=2, settings=INTERLEAVED),
    Case("tied", "pp2.cp2", packed=True),
    Case("untied", "cp2.tp2+sp", packed=True),
    Case("8 layers", "pp4", micro=2, settings=INTERLEAVED),
    # three and four
    Case("tied", "pp2.dp2.tp2"),
    Case("4 layers", "pp2.dp2.tp2+sp", packed=True),
    Case("untied", "pp2.rep2.tp2"),
    Case("4 layers", "pp2.dp2.tp2+sp", packed=True, micro=2, settings=INTERLEAVED),
    Case("tied", "pp2.cp2.tp2+sp", packed=True),
    Case("tied", "rep2.cp2.tp2+sp", packed=True, settings=CP_GATHER),
)
GATHERED = {**SELECTIVE, "persistent_elements": 1000}
"""Weights of products are gathered inside blocks that are computed again, others than in the forward pass."""
EXPERTS = (
    Case("moe", "dp2"),
    Case("moe", "dp2.ep2", micro=2, settings={**SELECTIVE, "prefetch_blocks": 2}),
    Case("moe", "rep2", packed=True),
    Case("moe", "dp2.ep2", packed=True),
    Case("moe", "tp2.ep2+sp"),
    # Packed: in the padded rows one of 8192 elements of the tied embedding has a first gradient of 6e-9, which is
    # rounding, and its sign alone decides AdamW's first step; one process differs by 1e-5 from itself there (LAB.md).
    Case("moe tied", "dp4.ep4", packed=True),
    Case("moe", "rep2.dp2.ep2", packed=True),
    Case("moe", "dp2.tp2.ep2+sp"),
    Case("moe 4 kv", "tp4.ep4+sp", packed=True),
    Case("moe", "pp2.dp2.ep2", packed=True),
    Case("moe", "cp2.dp2.ep4", packed=True),
    Case("moe", "pp2.dp2.tp2.ep4+sp", packed=True),
    Case("moe tied", "pp2.dp2.tp2.ep2+sp", packed=True),
    Case("moe", "pp2.cp2.tp2.ep4+sp", packed=True, settings=RECOMPUTED),
)
DATA_PARALLEL = ("ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")
OTHER_STRATEGIES = tuple(
    Case(model, strategy=strategy, world=world, packed=packed)
    for model, packed in (("tied", True), ("moe", False))
    for strategy, world in (("single", 1), *((name, 2) for name in DATA_PARALLEL))
)
SELECTIVE_GATHERED = tuple(
    Case("4 layers", strategy=strategy, world=2, packed=True, micro=2, settings=GATHERED)
    for strategy in ("zero3", "zeropp")
)
ADAPTERS = (
    Case("tied", strategy="ddp", world=2, packed=True, settings=LORA),
    Case("tied", strategy="zero3", world=2, packed=True, settings=LORA),
    *(
        Case("tied", mesh, packed=True, settings=LORA)
        for mesh in ("dp2", "tp2", "tp2+sp", "cp2", "pp2", "pp2.dp2.tp2", "pp2.dp2.tp2+sp")
    ),
)
ROUTED_ALIKE_FSDP = Case(
    "moe", strategy="fsdp", world=2, routed_alike=True, settings=IN_BF16, gates=BF16_ROUTED_ALIKE
)
HALF = (
    *(
        Case("tied", mesh, packed=True, settings=IN_BF16, gates=BF16)
        for mesh in ("dp2", "tp2+sp", "cp2", "pp2", "pp2.dp2.tp2+sp")
    ),
    Case("moe", "dp2.ep2", settings=IN_BF16, gates=BF16_EXPERTS),
    Case("moe", "pp2.dp2.tp2.ep4+sp", settings=IN_BF16, gates=BF16_EXPERTS),
    ROUTED_ALIKE_FSDP,
    *(
        Case("moe", strategy=strategy, world=2, routed_alike=True, settings=IN_BF16, gates=BF16_ROUTED_ALIKE)
        for strategy in ("ddp", "zero2", "zero3")
    ),
    *(
        Case("moe", mesh, routed_alike=True, settings=IN_BF16, gates=BF16_TRAVELLED)
        for mesh in ("dp2.ep2", "tp2.ep2+sp", "pp2.dp2.tp2.ep4+sp")
    ),
)
LARGE = (
    Case("tied", "pp2.dp2.cp2.tp2+sp", packed=True),
    Case("untied", "pp2.rep2.cp2.tp2+sp", packed=True, settings=CP_GATHER),
    Case("moe", "pp2.dp2.cp2.tp2.ep2+sp", packed=True),
    Case("moe", "pp2.dp2.cp2.tp2.ep8+sp"),
)
VARLEN = (
    *(
        Case("tied", strategy=strategy, world=2, packed=True, varlen=True)
        for strategy in ("ddp", "fsdp", "zero1", "zero2", "zero3")
    ),
    Case("moe", "dp2.ep2", packed=True, varlen=True),
    Case("tied", "tp2+sp", packed=True, varlen=True, settings=RECOMPUTED),
    Case("tied", "cp2", packed=True, varlen=True),
    Case("tied", "cp2", packed=True, varlen=True, settings=CP_GATHER),
    Case("untied", "cp2", varlen=True, settings=CP_GATHER),
    Case("4 layers", "pp2.dp2.tp2+sp", packed=True, varlen=True, micro=2, settings=INTERLEAVED),
    Case("tied", "pp2.cp2.tp2+sp", packed=True, varlen=True, settings=CP_GATHER),
    Case("tied", "dp2", packed=True, varlen=True, settings=IN_BF16, gates=BF16),
)
IN_CHUNKS = {"loss_chunk_tokens": 7}
TAUGHT = (
    *(
        Case("tied", strategy=strategy, world=world, packed=True, taught=True)
        for strategy, world in (("single", 1), *((name, 2) for name in DATA_PARALLEL))
    ),
    Case("tied", strategy="ddp", world=2, packed=True, taught=True, micro=2, settings=IN_CHUNKS),
    Case("untied", "rep2.dp2", taught=True, micro=2, settings=RECOMPUTED),
    Case("tied", "tp2", packed=True, taught=True, settings=IN_CHUNKS),
    Case("untied", "tp2+sp", taught=True),
    Case("tied", "cp2", packed=True, taught=True),
    Case("untied", "cp2", packed=True, taught=True, settings=CP_GATHER),
    Case("tied", "pp2", packed=True, taught=True, micro=2),
    Case("4 layers", "pp2.tp2", packed=True, taught=True, micro=2, settings=INTERLEAVED),
    Case("tied", "pp2.cp2.tp2+sp", packed=True, taught=True),
    Case("moe", "dp2.ep2", packed=True, taught=True),
    Case("moe", "pp2.dp2.tp2.ep4+sp", packed=True, taught=True),
    Case("tied", "pp2.dp2.tp2", packed=True, taught=True, settings=LORA),
    *(
        Case("tied", mesh, packed=True, taught=True, settings=IN_BF16, gates=BF16)
        for mesh in ("dp2", "tp2+sp", "pp2")
    ),
)
FORMS_BY_STRATEGY = tuple(
    case
    for form in FORMS
    for case in (
        Case(form, strategy="single", world=1, packed=True),
        Case(form, strategy="ddp", world=2),
        Case(form, strategy="fsdp", world=2, packed=True),
        Case(form, strategy="zero2", world=2),
        Case(form, strategy="zero3", world=2, packed=True),
        Case(form, strategy="ddp", world=2, packed=True, settings=LORA),
    )
)
LIKE_LLAMA = (
    "llama",
    "llama tied",
    "mistral",
    "mistral window",
    "qwen2 window",
    "qwen3",
    "qwen3 tied",
    "gemma3",
)
FORMS_BY_AXIS = tuple(
    Case(form, mesh, packed=packed, micro=2 if mesh == "pp2" else 0)
    for form in LIKE_LLAMA
    for mesh, packed in (
        ("pp2", True),
        ("tp2", False),
        ("pp2.tp2", True),
        ("cp2", True),
        ("dp2.tp2", True),
    )
)
FURTHER_AXES = (
    Case("llama", "tp2+sp", packed=True),
    Case("gemma3", "tp2+sp", packed=True),
    Case("gemma3", "cp2", packed=True, settings=CP_GATHER),
    Case("gemma2", "pp2.tp2", packed=True),
    Case("phi3", "pp2", packed=True),
    Case("phi3", "cp2", packed=True),
    Case("olmo2", "pp2.cp2", packed=True),
    Case("mixtral", "pp2.tp2.ep2+sp", packed=True),
    Case("gpt_oss", "pp2", packed=True),
    Case("gpt2", "dp2", packed=True),
    Case("gpt2", "cp2", packed=True),
)
FORMS_IN_BF16 = tuple(
    Case(form, strategy=strategy, world=2, packed=True, settings=IN_BF16, gates=BF16)
    for form, strategy in (
        *((form, "fsdp") for form in ("llama tied", "gemma2", "gemma3", "phi3", "olmo2", "gpt2")),
        ("gemma3", "zero2"),
        ("gemma2", "zero3"),
    )
)
FORMS_BY_SETTING = (
    Case("gemma3", strategy="hsdp", world=2),
    Case("gpt2", strategy="zero1", world=2, packed=True),
    Case("gemma2", strategy="zeropp", world=2),
    *(
        Case(form, strategy=strategy, world=2, packed=True, settings=recomputed)
        for form, strategy, recomputed in (
            ("gemma2", "ddp", SELECTIVE),
            ("gpt_oss", "ddp", SELECTIVE),
            ("gemma3", "fsdp", SELECTIVE),
            ("gpt2", "zero3", RECOMPUTED),
        )
    ),
    Case("gemma3", "pp2.tp2", packed=True, settings=LORA),
    Case("gemma3", strategy="fsdp", world=2, packed=True, micro=2, settings=IN_CHUNKS),
)
FAMILY_CASES = (*FORMS_BY_STRATEGY, *FORMS_BY_AXIS, *FURTHER_AXES, *FORMS_IN_BF16, *FORMS_BY_SETTING)
"""Further families: what each of them has of its own, under every kind of sharding."""
EVERY_CHANGE = (
    Case("llama", strategy="fsdp", world=2, packed=True),
    Case("gemma3", strategy="single", world=1, packed=True),
    Case("gemma3", "pp2", packed=True, micro=2),
    Case("gemma3", "tp2"),
)
"""Two of the families, for `make test`."""
CASES = (*DENSE, *EXPERTS, *OTHER_STRATEGIES, *SELECTIVE_GATHERED, *ADAPTERS, *HALF, *VARLEN, *TAUGHT)

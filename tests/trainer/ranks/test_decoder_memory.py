"""What each rank holds, by formula, against the real module on the meta device and against counts by hand.

No process but this one: torch's fake process group lets it be any rank of any number.
"""

from stratlab_spec.layout.nd_layout import resolve_layout
from stratlab_spec.memory.model_state import describe_ranks
from stratlab_spec.models.decoder_config import SHAPES
from stratlab_spec.models.decoder_json import shape_of_json
from stratlab_spec.settings.config import Config
from tests.ranks import run_ranks

DENSE, MOE = "qwen2.5-3b", "qwen3-30b-a3b"


def config(model=DENSE, **settings) -> Config:
    sizes = {"global_batch_size": 384, "micro_batch_size": 1, "seq_len": 2048}
    return Config(**{"run": "try", "strategy": "nd", "model": model} | sizes | settings)


def describe(processes, chosen):
    shape = SHAPES[chosen.model]
    return describe_ranks(chosen, shape, resolve_layout(chosen, processes, shape))


def _hold(chosen, shape, layout, ranks):
    """Per rank: elements held, of these trained, and elements before fully_shard; of the strategy's own module."""
    import copy

    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from stratlab_spec.layout.nd_layout import count_stages
    from stratlab_spec.strategies import ND_AXES
    from trainer.distributed.world import Precision, build_mesh
    from trainer.measuring.held_tensors import local_part
    from trainer.models.decoder import Decoder, build_hugging_face
    from trainer.models.lora import apply_lora
    from trainer.parallel.expert import apply_experts
    from trainer.parallel.fully_shard import apply_sharding
    from trainer.parallel.meshes import build_meshes
    from trainer.parallel.pipeline import apply_stage, layers_of
    from trainer.parallel.tensor import apply_tensor

    with torch.device("meta"):
        whole = Decoder(build_hugging_face(shape), shape, packed=False, seq_len=chosen.seq_len)
        if chosen.lora_rank:
            apply_lora(whole, chosen)
    axes, stages, found = layout.axes, count_stages(chosen, layout.axes.pp), {}
    for rank in ranks:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=axes.world_size)
        meshes = build_meshes(build_mesh(axes, "cpu", ND_AXES), axes.ep, shape.experts > 0)
        held = trained = before = 0
        for index in range(meshes.pp.get_local_rank(), stages, axes.pp):
            module = copy.deepcopy(whole)
            apply_stage(module, index, stages)
            apply_tensor(module, meshes.tp, layout.sequence_parallel)
            apply_experts(list(layers_of(module).values()), meshes.ep)
            before += sum(local_part(p).numel() for p in module.parameters())
            layers, precision = layers_of(module).values(), Precision(chosen.precision)
            apply_sharding(module, layers, meshes.shard, chosen, precision, meshes.experts, meshes.pp.size())
            parts = [(local_part(p), p.requires_grad) for p in module.parameters()]
            assert all(part.dtype == torch.float32 for part, _ in parts)
            held += sum(part.numel() for part, _ in parts)
            trained += sum(part.numel() for part, gets_gradient in parts if gets_gradient)
        found[rank] = (held, trained, before)
        dist.destroy_process_group()
    return found


def compare(cases):
    for chosen, processes, shape in cases:
        layout = resolve_layout(chosen, processes, shape)
        expected = describe_ranks(chosen, shape, layout)
        for rank, found in _hold(chosen, shape, layout, sorted({0, 1 % processes, processes - 1})).items():
            one = expected[rank]
            wanted = (one.parameters, one.trained, one.computed_with)
            assert found == wanted, (chosen.model_name, layout.name, rank, found, wanted)


def narrowed(model, layers=2, **changes):
    """The published widths with as many layers as two stages need, and names of config.json changed."""
    whole = SHAPES[model]
    content = {**whole.arguments, "model_type": whole.family, "num_hidden_layers": layers, **changes}
    return shape_of_json(content, model)


MLP_ADAPTERS = "down_proj,k_proj,up_proj,o_proj"


def test_given_layouts_adapters_and_uneven_parts():
    def given(model=DENSE, **settings):
        return config(model, layout="given", **settings)

    cases = [
        (config(dimensions=3, lora_rank=8), 8, narrowed(DENSE)),
        (config(dimensions=4, lora_rank=7, lora_targets=MLP_ADAPTERS), 16, narrowed(DENSE)),
        (config(MOE, dimensions=5, lora_rank=8), 8, narrowed(MOE)),
        (given(dp_replicate=2, dp_shard=3, pp=2), 12, narrowed(DENSE)),
        (given(pp=2, tp=2, pp_schedule="interleaved1f1b"), 8, narrowed(DENSE, layers=5)),
        (given(MOE, tp=2, dp_replicate=2, ep=3), 12, narrowed(MOE, num_experts=129)),
        (given(MOE, tp=2, ep=2), 6, narrowed(MOE)),
        (given(cp=3, cp_method="allgather", seq_len=2049, precision="bf16"), 6, narrowed(DENSE)),
        (given(tp=2, pp=2, global_batch_size=35), 20, narrowed(DENSE, tie_word_embeddings=False)),
    ]
    run_ranks(lambda: compare(cases), 1, timeout_s=300)


def test_counted_by_hand():
    """Qwen2.5-3B over pp2.dp2.tp2, written out. Per layer: q k v with biases, o, gate up down, two norms."""
    hidden, inner, vocab = 2048, 11008, 151936
    cut_by_tp = (2048 + 256 + 256) * (hidden + 1) + 2048 * hidden + 3 * inner * hidden
    layer = cut_by_tp // 2 + 2 * hidden
    first_stage = (18 * layer + vocab * hidden // 2) // 2
    last_stage = (18 * layer + vocab * hidden // 2 + hidden) // 2
    found = describe(8, config(dimensions=3))
    assert [one.parameters for one in found] == [first_stage] * 4 + [last_stage] * 4
    assert found[0].coordinates == dict.fromkeys(("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep"), 0)
    assert {(one.parameter_bytes, one.gradient_bytes, one.optimizer_bytes) for one in found[:4]} == {
        (4 * first_stage, 4 * first_stage, 8 * first_stage)
    }
    assert found[0].total_bytes == 16 * first_stage == 6794498048
    assert found[0].computed_with == 2 * first_stage


def test_gradients_and_state_of_what_is_trained_only():
    adapters = describe(8, config(dimensions=3, lora_rank=8))[0]
    whole = describe(8, config(dimensions=3))[0]
    assert adapters.trained == adapters.parameters - whole.parameters < whole.parameters // 100
    assert (adapters.gradient_bytes, adapters.optimizer_bytes) == (4 * adapters.trained, 8 * adapters.trained)
    plain, moving = (describe(8, config(dimensions=3, optimizer="sgd", momentum=m))[0] for m in (0.0, 0.9))
    assert (plain.optimizer_bytes, moving.optimizer_bytes) == (0, 4 * moving.trained)
    native = describe(8, config(dimensions=3, precision="bf16"))[0]
    assert native == whole

"""nd in fp16 with a scaled loss (real runs need a GPU for it), and compiled layers on further axes."""

from typing import Any

from stratlab_spec.settings.config import Config
from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config
from tests.trainer.saving import save_state

EXPERTS = {"pp": 2, "dp_shard": 2, "ep": 2, "model": "qwen_moe_tiny"}


def start_scaled(config: Config) -> Any:
    """The engine on the ranks that run, in fp16."""
    from tests.trainer.parallel import small
    from tests.trainer.runs import run_of
    from trainer.distributed.world import Precision
    from trainer.measuring.phases import Phases
    from trainer.models import weights as weight_sources
    from trainer.models.decoder_build import build_decoder
    from trainer.strategies import build_engine

    weight_sources.RandomWeights = small.Louder  # type: ignore[misc]
    return build_engine(run_of(config, Precision("fp16")), build_decoder(config, empty=True), Phases("cpu"))


def step(engine: Any, config: Config, number: int) -> tuple[float, float, int]:
    import torch.distributed as dist

    from tests.trainer.parallel import small

    shards = engine.meshes.world["dp_shard"]
    batch = small.share_of(config, shards.size(), shards.get_local_rank(), number)
    result = engine.train_step(batch, config.lr)
    loss = result.loss.clone()
    dist.all_reduce(loss)
    return float(loss), float(result.grad_norm), result.skipped


def test_an_overflow_on_one_rank_skips_the_step_on_all_and_halves_the_scale(tmp_path):
    def run() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.parallel import small
        from trainer.measuring.held_tensors import local_part

        dist.init_process_group("gloo")
        config = make_config(clip_norm=0.5, **EXPERTS)
        loss_exact, norm_exact, _ = step(small.start(config), config, 1)
        engine = start_scaled(config)
        engine.loss_scale.scale = 1024.0
        loss, norm, skipped = step(engine, config, 1)
        assert skipped == 0 and abs(loss_exact - loss) < 5e-3 * loss and abs(norm_exact - norm) < 2e-2 * norm
        held = [local_part(p).detach() for p in engine.module.parameters()]
        before, complete = [part.clone() for part in held], engine._sum_tied

        def overflow():
            found = complete()
            if dist.get_rank() == 3:  # in a part that this rank alone holds
                first = next(local_part(p.grad) for p in engine.module.parameters() if p.numel())
                first.view(-1)[0] = torch.inf
            return found

        engine._sum_tied = overflow
        _, norm, skipped = step(engine, config, 2)
        del engine._sum_tied
        assert skipped == 1 and norm == torch.inf
        assert (engine.loss_scale.scale, engine.loss_scale.good_steps) == (512.0, 0)
        assert all(torch.equal(a, b) for a, b in zip(before, held, strict=True))
        assert all(p.grad is None for p in engine.module.parameters())

        loss, norm, skipped = step(engine, config, 3)
        assert skipped == 0 and loss < 10 and 0 < norm < 50
        assert (engine.loss_scale.scale, engine.loss_scale.good_steps) == (512.0, 1)
        assert not all(torch.equal(a, b) for a, b in zip(before, held, strict=True))
        engine.loss_scale.good_steps = engine.loss_scale.INTERVAL - 1
        assert step(engine, config, 4)[2] == 0
        assert (engine.loss_scale.scale, engine.loss_scale.good_steps) == (1024.0, 0)
        save_state(engine, tmp_path)
        other = start_scaled(make_config(pp=4, model="qwen_moe_tiny"))
        other.load(tmp_path)
        assert (other.loss_scale.scale, other.loss_scale.good_steps) == (1024.0, 0)
        assert engine.observed.dtypes == {k: ["float32"] for k in ("parameters", "gradients", "optimizer")}

    run_ranks(run, 4)

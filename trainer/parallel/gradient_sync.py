"""When fully_shard reduces gradients while a step goes over several micro-batches: fsdp, hsdp and nd alike.

accumulate    each micro-batch                          the last one          between them
sharded       reduce-scatter, added to the shards       all-reduce, if any    1/n of the gradients
whole         nothing                                   both                  all of them

n is the number of shards, the all-reduce that between replicas. A pipeline does the second by itself, in torch's
schedules.
"""

from __future__ import annotations

from torch.distributed.fsdp import FSDPModule


def apply_sync(model: FSDPModule, sharded: bool, completes_step: bool) -> None:
    """Tells a sharded model, in place, what to do after the next backward pass.

    Args:
        sharded: of `knob_table.accumulates_sharded`.
        completes_step: no micro-batch of the step follows.
    """
    if sharded:
        model.set_requires_all_reduce(completes_step)
    else:
        model.set_requires_gradient_sync(completes_step)

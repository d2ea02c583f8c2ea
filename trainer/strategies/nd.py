"""nd: data, pipeline, tensor, sequence or context, and expert parallelism in one mesh (trainer/parallel).

Sharded: the layers over pp, each matrix over tp, whole experts over ep. dp_shard x cp shards the rest of every
parameter
with its gradient and optimizer state; dp_replicate repeats everything. The activations of a sequence are split over cp,
and with sequence parallelism between the layers over tp.
Collectives per step; an axis of size one has no collectives:
    pp                 per micro-batch and border: the stream forward, its gradient back (send, receive)
    tp                 per micro-batch and layer: 4 all-reduces of the stream, or 4 all-gathers and 4 reduce-scatters;
                       further ones for embedding, head and loss, and once per step for norms' and router's gradients
    cp                 per micro-batch and layer: ulysses 8 all-to-all, allgather 2 all-gathers and 2 reduce-scatters
    ep                 per micro-batch and layer: 4 all-to-all of tokens, 1 of counts
    dp_shard x cp      per layer: all-gather before forward and before backward of each micro-batch (with pp once per
                       step), one reduce-scatter of the gradients per step; dp_replicate: one all-reduce
    tied embedding     one all-reduce between first and last stage; and single numbers for the gradient norm

                  dp_shard ─▶
               ┌──────────┬──────────┐                   8 processes: pp2.dp2.tp2
    pp │  tp ─▶│ r0    r1 │ r2    r3 │  layers 0..n/2    r0 and r1 share each matrix of their layers (tp),
       ▼       ├──────────┼──────────┤                   r0 and r2 see other rows of the batch (dp_shard),
               │ r4    r5 │ r6    r7 │  layers n/2..n    r0 sends the stream to r4 (pp)
               └──────────┴──────────┘                   experts: ep across r0-r3, and across r4-r7
"""

from __future__ import annotations

from torch import nn

from trainer.engine import Engine
from trainer.measuring.phases import Phases
from trainer.models.weights import open_weights
from trainer.parallel.meshes import build_meshes
from trainer.parallel.nd_engine import ScheduleEngine, build_stages
from trainer.run import Run


def build(run: Run, model: nn.Module, phases: Phases) -> Engine:
    """Build the decoder over the five axes of the mesh and the expert axis of its layout.

    Args:
        model: on the meta device on every rank; each reads its own part of the weights.
    """
    layout = run.plan.layout
    assert layout is not None, "nd without a layout"
    meshes = build_meshes(run.mesh, layout.axes.ep, model.shape.experts > 0)
    stages = build_stages(run, model, meshes, open_weights(run.config, model))
    return ScheduleEngine(run, stages, meshes, phases)

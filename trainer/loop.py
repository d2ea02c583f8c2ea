"""The only training loop. It knows the Engine contract and cannot name a strategy."""

from __future__ import annotations

from collections.abc import Callable

from stratlab_spec.schedule import learning_rate
from trainer.data.batches import Batch
from trainer.distributed.consensus import Agreement
from trainer.engine import Engine
from trainer.hang_detection.heartbeat import STEP
from trainer.measuring.held_tensors import set_aside
from trainer.measuring.memory import TrainingMemory
from trainer.measuring.phases import Phases
from trainer.measuring.profiler import StepProfiler
from trainer.metrics.tracking import Recorder
from trainer.run import Run


def train(
    run: Run,
    first_step: int,
    engine: Engine,
    next_batch: Callable[[int], Batch],
    phases: Phases,
    memory: TrainingMemory,
    recorder: Recorder,
    profiler: StepProfiler,
    agreement: Agreement,
    validate: Callable[[int], None],
    after_step: Callable[[int], None],
) -> None:
    """Train the steps from `first_step` to the last one of the plan.

    The loop does not wait for the network, the disk or the device, except `validate` and `after_step` (checkpoints)
    at their steps, and `agreement` for the other ranks' hosts about once a second.

    Raises:
        NotFinite: when a written loss is not finite.
        Stopped: on every rank after the same step.
    """
    config, steps, evaluate_every = run.config, run.plan.steps, run.plan.evaluate_every
    words = run.pulse.words
    for step in range(first_step, steps + 1):
        words[STEP] = step
        profiler.begin_step(step)
        memory.begin_step(step)
        lr = learning_rate(config, step, steps)
        with phases.begin_step(step):
            with phases.data:
                batch = next_batch(step)
            with recorder.count_wire(profiler.active):
                result = engine.train_step(batch, lr)
        recorder.record_step(step, lr, result, phases.take(), profiler.active)
        profiler.end_step(step)
        agreement.end_step(step, profiler.active)
        if step % evaluate_every == 0 or step == steps:
            recorder.flush()
            validate(step)
        after_step(step)
        if step == first_step:
            set_aside()

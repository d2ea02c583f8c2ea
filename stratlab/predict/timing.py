"""Add the time of a step to predictions: tokens or images per second, MFU, price, and the fastest strategy.

    Prediction ─▶ predict_step_time (stratlab_spec/step_time) ─▶ Speed; rank_speeds ─▶ which one, ties called ties

Times come from constants of a card, not from a measurement of the user's machine. So each has a wide band, and two
strategies nearer than TIE_PCT are a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.predict import Prediction
from stratlab_spec.memory.prediction import Verdict
from stratlab_spec.memory.recording import NotRecorded
from stratlab_spec.memory.simulated import Simulated
from stratlab_spec.models.decoder import count_flops_per_token
from stratlab_spec.models.decoder_config import read_shape
from stratlab_spec.step_time.kernels import Card
from stratlab_spec.step_time.prediction import DOCUMENT_TOKENS, predict_step_time

BAND_PCT = 30
"""Of a step on a machine that has not been measured: an uncalibrated predictor is 9 to 16 % off in the mean on public
tables, and equal machines of several makers differ by 6 to 38 %."""
TIE_PCT = 6


@dataclass(frozen=True)
class Speed:
    """The time of a run's step on one kind of GPU."""

    name: str
    step_ms: float
    unit: str
    """tokens or images."""
    per_s: float
    """Of all GPUs together."""
    mfu_pct: float | None
    idle_pct: float
    """Share of the step in which the GPU waits for the host."""
    exposed_pct: float
    """Share of the step in which it waits for collectives."""
    gpus: int

    def price_per_million(self, per_gpu_hour: float) -> float:
        """Return the price of a million tokens or images."""
        return 1e6 / self.per_s / 3600 * self.gpus * per_gpu_hour

    def as_dict(self, per_gpu_hour: float | None) -> dict[str, Any]:
        """Return it for a file."""
        price = {"price_per_million": round(self.price_per_million(per_gpu_hour), 4)} if per_gpu_hour else {}
        return {
            "step_ms": round(self.step_ms, 2),
            "band_pct": BAND_PCT,
            f"{self.unit}_per_s": round(self.per_s, 1),
            "mfu_pct": None if self.mfu_pct is None else round(self.mfu_pct, 1),
            "host_wait_pct": round(self.idle_pct, 1),
            "exposed_communication_pct": round(self.exposed_pct, 1),
            **price,
        }


def predict_speed(one: Prediction, card: Card) -> Speed | str:
    """Return the speed of a run, or why it is not known."""
    file = one.file
    if not isinstance(file, Simulated):
        return "the memory comes from an operations file"
    config, ranks = file.config, file.ranks
    try:
        time = predict_step_time(config, ranks, file.ranks_of_node, card)
    except NotRecorded as failure:
        return f"no recorded operations for {failure}"
    rows = config.global_batch_size
    units = rows * (config.seq_len if config.is_text else 1)
    mfu = None
    if config.is_text:
        seen = min(DOCUMENT_TOKENS, config.seq_len) if config.packing else config.seq_len
        flops = count_flops_per_token(read_shape(config), seen, causal=True, lora=bool(config.lora_rank))
        mfu = 100 * flops * units / time.step_ms * 1e3 / ranks / card.peak_tflops / 1e12
    line = time.timeline
    idle, exposed = (100 * part / line.step_s for part in (line.idle_s, line.exposed_s))
    unit = "tokens" if config.is_text else "images"
    return Speed(one.question.name, time.step_ms, unit, units / time.step_ms * 1e3, mfu, idle, exposed, ranks)


def rank_speeds(speeds: Sequence[Speed], answers: Sequence[Prediction]) -> list[Speed]:
    """Return the speeds of runs that fit, the fastest first."""
    fitting = {one.question.name for one in answers if one.verdict is Verdict.FITS}
    return sorted((one for one in speeds if one.name in fitting), key=lambda one: -one.per_s)


def list_ties(ranked: Sequence[Speed]) -> list[Speed]:
    """Return those that are no slower than the fastest one by TIE_PCT, without it."""
    return [one for one in ranked[1:] if one.per_s > ranked[0].per_s * (1 - TIE_PCT / 100)]

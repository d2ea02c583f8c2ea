"""Options by hand: a name, a speed, a memory, and settings."""

from dataclasses import replace

import pytest

from stratlab.predict import predict
from stratlab.predict.asking import ask_of_model
from stratlab.predict.timing import BAND_PCT, Speed
from stratlab.recommend import COMPILED, RECOMPUTED, ROWS, Option
from stratlab_spec.memory.extrapolation import Peak
from stratlab_spec.memory.prediction import GATE
from stratlab_spec.memory.simulated import simulate_run

GIB = 100.0


@pytest.fixture(scope="session")
def make():
    """Build an option of a strategy; `per_s` 0 = its time is not known."""

    def make(strategy, per_s, share=0.5, gpus=4, band=BAND_PCT, idle=0.0, exposed=0.0, run="", **chosen):
        """`share`: of the largest memory that fits."""
        [question] = ask_of_model("qwen2.5-3b", gpus, [f"strategy={strategy}"])
        known = predict(question, simulate_run(question), GIB)
        held = (share * GATE * GIB - known.device.fixed_gib) * 2**30 / 1.04
        peak = Peak("backward", 0, {"parameters": int(held)})
        known = replace(
            known,
            question=replace(question, name=run or strategy),
            peak=peak,
            verdict=known.device.judge(peak.total),
        )
        speed = (
            Speed(strategy, 1000.0, "tokens", per_s, 40.0, idle, exposed, gpus, band)
            if per_s
            else "no operations"
        )
        settings = {ROWS: "1", RECOMPUTED: "none", COMPILED: "false", **chosen}
        return Option(known, speed, settings)

    return make

"""Measure the CPU time of `stratlab predict` with times and of `stratlab recommend`, against their bars.

    python -m benchmarks.prediction_cost       # a few seconds; ends with 1 if a bar is missed

Each question runs in a new process without torch, as the verbs do, imports included:

    predict     14 charts of docs/strategies.md x 1, 2, 4, 8, 64 and 512 GPUs, memory, advice and time: 3 CPU-s
    recommend   the fastest configuration of Llama-3.1-8B on 64 GPUs, LoRA and offload allowed: 240 CPU-s, which are
                2 minutes of two cores; it counts only with at least 500 options
"""

from __future__ import annotations

import subprocess
import sys
import time

MODEL = "llama-3.1-8b"
GPUS = (1, 2, 4, 8, 64, 512)
DATA_PARALLEL = ("ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "zeropp")
DIMENSIONS = range(1, 6)
ADAPTERS = ("strategy=single", "lora_rank=16", "init=pretrained")
BARS_S = {"predict": 3.0, "recommend": 240.0}
FEWEST_OPTIONS = 500


def predict_charts() -> str:
    """Predict every chart on every number of GPUs; return how many answers and times are known."""
    from stratlab.predict import Prediction
    from stratlab.predict.answering import answer
    from stratlab.predict.asking import ask_of_model
    from stratlab.predict.timing import Speed, find_card, predict_speeds

    card, known, timed = find_card("h100"), 0, 0
    for gpus in GPUS:
        asked = [[f"strategy={name}"] for name in DATA_PARALLEL]
        asked += [["strategy=nd", f"dimensions={number}"] for number in DIMENSIONS]
        asked += [["strategy=single"], [*ADAPTERS]] if gpus == 1 else []
        questions = [one for settings in asked for one in ask_of_model(MODEL, gpus, settings)]
        answers = [one for one in answer(questions, (), card.memory_gib, None) if isinstance(one, Prediction)]
        speeds = predict_speeds(answers, card)
        known += len(answers)
        timed += sum(isinstance(one, Speed) for one in speeds.found.values())
    return f"{known} known, {timed} of them with a time"


def recommend_large() -> str:
    """Recommend a configuration; return the number of options.

    Raises:
        ValueError: fewer than FEWEST_OPTIONS.
    """
    from stratlab.predict.timing import find_card
    from stratlab.recommend.choice import Aim, choose
    from stratlab.recommend.search_space import search
    from stratlab.recommend.wanted import list_questions, read_wanted

    card, gpus = find_card("h100"), 64
    wanted = read_wanted(MODEL, gpus, "", 512, 0, (), ())
    found = search(list_questions(wanted, gpus, 0, fewer=False), card, card.memory_gib, ("lora", "offload"))
    if len(found.options) < FEWEST_OPTIONS:
        raise ValueError(f"{len(found.options)} options, expected {FEWEST_OPTIONS} [SL-bench-options]")
    choose(found.options, Aim.fastest)
    return f"{len(found.options)} options"


QUESTIONS = {"predict": predict_charts, "recommend": recommend_large}


def main() -> None:
    if len(sys.argv) > 1:
        said = QUESTIONS[sys.argv[1]]()
        assert "torch" not in sys.modules
        print(f"{said}: {time.process_time():.2f} CPU-s")
        return
    missed = False
    for name, bar in BARS_S.items():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.prediction_cost", name], capture_output=True, text=True
        )
        done.check_returncode()
        taken = float(done.stdout.rpartition(": ")[2].split()[0])
        missed |= taken > bar
        print(f"{name}: {done.stdout.strip()}, bar {bar:g}{' MISSED' if taken > bar else ''}")
    sys.exit(missed)


if __name__ == "__main__":
    main()

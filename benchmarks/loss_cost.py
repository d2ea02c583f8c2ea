"""What the loss in chunks costs beside the same loss with all logits at once: time and memory, in one run.

    python -m benchmarks.loss_cost --tokens 4096 --hidden 512 --words 32000 --chunks 512,2048

States, head, loss and both gradients, forward and backward, measured in turns; in CPU time where there is no GPU.
Ratios of the medians, with the quartiles of the turns. On a GPU: time by events, and the allocator's peak.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.losses import draw_case, plain_loss
from trainer.models.chunked_cross_entropy import token_loss


def measure(loss: Callable[[], Tensor], leaves: tuple[Tensor, ...], device: str) -> float:
    """Seconds of one forward and backward."""
    for leaf in leaves:
        leaf.grad = None
    if device == "cpu":
        began = time.process_time()
        loss().backward()
        return time.process_time() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    loss().backward()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--words", type=int, default=32000)
    parser.add_argument("--chunks", default="512,2048", help="tokens per chunk, separated by commas")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    states, weight, labels = draw_case(
        asked.device, asked.tokens, asked.hidden, asked.words, getattr(torch, asked.dtype)
    )
    ways: dict[str, Callable[[], Tensor]] = {"plain": lambda: plain_loss(states, weight, labels)}
    for chunk in map(int, asked.chunks.split(",")):
        ways[f"chunks of {chunk}"] = lambda chunk=chunk: token_loss(  # type: ignore[misc]
            states, weight, labels, chunk_tokens=chunk
        )
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(asked.turns + 1):
        for name, way in ways.items():
            seconds = measure(way, (states, weight), asked.device)
            if turn:  # the first one warms up
                times[name].append(seconds)
    report: dict[str, object] = {**vars(asked), "threads": torch.get_num_threads()}
    for name, seconds_of in times.items():
        ratios = [mine / plain for mine, plain in zip(seconds_of, times["plain"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        report[name] = {
            "seconds": statistics.median(seconds_of),
            "ratio": statistics.median(ratios),
            "quartiles": [low, high],
        }
        if asked.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            measure(ways[name], (states, weight), asked.device)
            report[name]["peak_gib"] = (torch.cuda.max_memory_allocated() - held) / 2**30  # type: ignore[index]
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

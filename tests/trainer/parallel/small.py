"""Small decoders and rows of the tests of trainer/parallel."""

from typing import Any

import torch
from torch import Tensor

from stratlab_spec.settings.config import Config
from tests.trainer.runs import run_of
from trainer.data.batches import Batch
from trainer.data.text.token_rows import IGNORED
from trainer.measuring.phases import Phases
from trainer.models import weights as decoder_weights
from trainer.models import weights as weight_sources
from trainer.models.decoder import Decoder
from trainer.models.decoder_build import build_decoder


class Louder(decoder_weights.RandomWeights):
    """Weights with which every gradient is well above the rounding: no bias and no adapter is zero."""

    def tensor(self, name: str) -> Tensor:
        generator = torch.Generator().manual_seed(sum(name.encode()) * 1009 + len(name))
        noise = torch.randn(self.shape(name), generator=generator)
        if noise.ndim > 1:
            return 0.08 * noise
        return 0.1 * noise + ("norm" in name)


def make_config(**settings: Any) -> Config:
    given = {"model": "qwen_tiny", "dataset": "arithmetic", "seq_len": 16, "global_batch_size": 4}
    given |= {"micro_batch_size": 1, "clip_norm": 1.0, "layout": "given"}
    return Config(**{"run": "try", "strategy": "nd"} | given | settings)


def make_rows(config: Config, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(inputs, labels) of one global batch; packed rows hold three documents of unequal length."""
    generator = torch.Generator().manual_seed(seed)
    rows, seq = config.global_batch_size, config.seq_len
    ids = torch.randint(0, 320, (rows, seq + 1), generator=generator)
    labels, positions = ids[:, 1:].clone(), torch.arange(seq).repeat(rows, 1)
    for row in range(rows):
        start = 1 + row % 3
        labels[row, :start] = IGNORED
        for cut in (start + 2, seq - 4 - row % 2) if config.packing else ():
            positions[row, cut:] = torch.arange(seq - cut)
            labels[row, cut - 1] = IGNORED
    return torch.stack([ids[:, :-1], positions], 1), labels


def count_labels(labels: Tensor) -> int:
    return int((labels != IGNORED).sum())


def start(config: Config) -> Any:
    """The engine of the strategy nd on the ranks that run."""
    from trainer.strategies import nd

    weight_sources.RandomWeights = Louder  # type: ignore[misc]
    decoder = build_decoder(config, empty=True)
    return nd.build(run_of(config), decoder, Phases("cpu"))


def whole_decoder(config: Config) -> Decoder:
    weight_sources.RandomWeights = Louder  # type: ignore[misc]
    return build_decoder(config)


def share_of(config: Config, dp: int, dp_rank: int, seed: int = 0) -> Batch:
    inputs, labels = make_rows(config, seed)
    parts = zip(inputs.chunk(dp)[dp_rank].split(1), labels.chunk(dp)[dp_rank].split(1), strict=True)
    return Batch(list(parts), len(inputs), count_labels(labels))

"""Whether a run may start with the memory that is foreseen for it; before its ranks, without torch."""

from __future__ import annotations

import logging

from trainer.failures import OutOfMemory
from trainer.forecast.memory import GATE, GIB, advise, forecast_memory
from trainer.launch.preflight import Pods
from trainer.layout.choice import choose_layout, depends_on_device
from trainer.layout.fit import largest_device_bytes
from trainer.layout.need import as_laid_out
from trainer.settings.config import Config
from trainer.shapes.decoder_json import read_shape

log = logging.getLogger("trainer")


def check_memory(config: Config, pods: Pods) -> None:
    """Says what the run will hold if that is known; without an operations file, or on a device nobody knows, warns or
    keeps silent.

    Raises:
        OutOfMemory: it cannot fit: with the breakdown by cause and what to try. With `oom_ladder` the run may start.
    """
    if not config.memory_forecast or config.mode != "train" or (device := largest_device_bytes()) is None:
        return
    device_gib = device / GIB
    asked = config
    if depends_on_device(config):
        choice = choose_layout(config, pods.world_size, read_shape(config), device)
        asked = as_laid_out(config, choice.layout)
        if choice.left_out:
            log.warning("layout %s: %s", choice.layout.name, choice.tell_left_out(device_gib))
        if not choice.fits and not config.oom_ladder:
            raise OutOfMemory(
                f"TRAINER_LAYOUT=auto: no layout of {config.dimensions}D fits; {choice.tell_left_out(device_gib)}; "
                f"{choice.tell_least()}; try {choice.advise(config)}, or run.config.memory_forecast=false to start in "
                "spite of it [SL-no-layout-fits]"
            )
    forecast = forecast_memory(asked, pods.world_size, pods.processes_per_node)
    if forecast is None:
        log.warning(
            "memory_forecast: no operations file of these settings, so nobody knows whether they fit %.1f GiB before "
            "the first steps (docs/predict.md)",
            device_gib,
        )
        return
    told = f"foreseen: {forecast.describe()}; a device has {device_gib:.2f} GiB"
    if forecast.on_device_gib <= GATE * device_gib:
        log.info(told)
        return
    told += f"; try {advise(asked, pods.world_size, forecast.file, device_gib)}"
    if forecast.least_gib > device_gib and not forecast.at_most and not config.oom_ladder:
        raise OutOfMemory(
            f"{told}, or run.config.memory_forecast=false to start in spite of it [SL-forecast-too-large]"
        )
    log.warning("more than %.0f %% of the device is %s", 100 * GATE, told)

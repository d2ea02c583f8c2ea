"""`python -m trainer.evaluate RUN_DIRECTORY`: evaluate the weights of a finished run locally, in one process."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.models.model_specs import default_image_size
from stratlab_spec.run_directory import RunDirectory, write_json
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.old_names import take_new_names
from stratlab_spec.settings.wording import spell_options
from trainer.data.files import check_classes, check_held_out, evaluated
from trainer.distributed import trust_given

EXAMPLE = """example:
  python -m trainer.evaluate results/runs/default/ddp
  python -m trainer.evaluate results/runs/default/ddp --weights best --output best.json

In a pod, and with several processes: TRAINER_MODE=evaluate python -m trainer.
Exit codes: 0 done, 2 bad configuration, 3 data or model missing, 10 accelerator out of memory, 13 storage full."""

OPTIONS = {"model_path": "--weights", "dataset_path": "--dataset-path"}
"""Settings and the options that set them in this command."""


def main(arguments: list[str] | None = None) -> int:
    """Print the accuracy and a line per class, write the report, and return the exit code."""
    asked = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        trust_given(os.environ)
        if asked.output.is_dir() or not asked.output.absolute().parent.is_dir():
            raise ConfigError(
                f"--output={asked.output}: expected a file in an existing folder [SL-evaluate-output]"
            )
        report = evaluate_run_directory(asked.run_directory, asked.weights, asked.dataset_path, asked.device)
        print(describe(report))
        write_json(asked.output, report)
        print(f"written: {asked.output}")
    except Exception as failure:
        code = failures.exit_code(failure)
        if code == failures.CRASHED:
            raise
        print(f"{failures.reason(code)}: {spell_options(str(failure), OPTIONS)}", file=sys.stderr)
        return code
    return failures.DONE


def evaluate_run_directory(
    path: Path, weights: str = "final", dataset_path: str = "", device: str = ""
) -> dict[str, Any]:
    """Evaluate exported weights on the test split of a run; return the content of evaluation.json.

    Args:
        weights: `final`, `best` (the best checkpoint; the final one if no other was better), or a folder.
        dataset_path: local path of the data set, if it differs from the run's path.
        device: device name of torch; empty = the accelerator if there is one.

    Raises:
        ConfigError: `path` is not a run directory, or the weights do not fit the data.
        DataMissing: the weights or the data do not exist.
    """
    config = read_config(path)
    folder = choose_weights(path, weights, "--weights")
    if dataset_path:
        config = config.model_copy(update={"dataset_path": dataset_path})
    elif config.dataset_path and not Path(config.dataset_path).exists():
        raise DataMissing(
            f"the run's data set does not exist: {config.dataset_path}; set --dataset-path to its local path "
            "[SL-evaluate-data-gone]"
        )
    config = evaluated(config, folder)
    if config.is_text:
        from trainer.prepare.preparation import ensure_cache

        ensure_cache(config, lambda text: print(spell_options(text, OPTIONS)))
    else:
        from trainer.data import open_data

        # prints warnings about the test split before the slow import of torch
        data = open_data(config, config.image_size or default_image_size(config))
        check_classes(config, data)
        for note in (*data.notes, *check_held_out(data, test_alone=True)):
            print(spell_options(note, OPTIONS), file=sys.stderr)

    import torch  # late, so that errors about the folder appear immediately

    from trainer.data.batches import Share
    from trainer.distributed.world import apply_whole_fp32
    from trainer.tasks import open_task

    apply_whole_fp32()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found, _ = open_task(config, Share(0, 1), device).judge()
    return found.report("test") | {"weights": config.model_path}


def read_config(path: Path) -> Config:
    """Return the settings of a run, with its resolved image size and its current results folder.

    Raises:
        ConfigError: `path` is not a run directory.
    """
    try:
        content = json.loads((path / "config.json").read_text())
        resolved = content["resolved"]
        given = take_new_names(content["config"]) | {"results": str(path.absolute().parent.parent)}
        given |= {"image_size": int(resolved["image_size"])} if "image_size" in resolved else {}
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise ConfigError(
            f"{path}: is not a run directory, config.json cannot be read ({failure}) [SL-evaluate-run-directory]"
        ) from None
    # a setting at its default counts as not set, because rules check the user's input
    fields = Config.model_fields
    chosen = {name: v for name, v in given.items() if name in fields and v != fields[name].default}
    return Config.model_validate(chosen)


def choose_weights(path: Path, weights: str, named: str = "weights") -> Path:
    """Return the folder that `weights` names.

    Args:
        named: the option or setting to name in messages.

    Raises:
        ConfigError: `weights` is neither `final` nor `best` nor a folder.
        DataMissing: the folder has no weights.
    """
    run = RunDirectory(path.parent.parent, path.parent.name, path.name)
    if weights in ("final", "best"):
        folder = run.best_model if weights == "best" and run.best_model.is_dir() else run.model
    elif not weights or not (folder := Path(weights)).is_dir():
        raise ConfigError(
            f"{named}={weights!r}: expected final, best or a folder in Hugging Face format [SL-evaluate-weights]"
        )
    if not (folder / "config.json").is_file():
        raise DataMissing(
            f"{folder}: has no model in Hugging Face format. A run exports one at its end if "
            "TRAINER_CHECKPOINT_EVERY is above 0 or it ran longer than TRAINER_CHECKPOINT_MINUTES. "
            "Restart an unfinished run to continue it [SL-evaluation-no-weights]"
        )
    return folder


def describe(report: dict[str, Any]) -> str:
    """Format the accuracy, the loss and a table per class, or loss and perplexity, for a terminal."""
    if "perplexity" in report:
        return (
            f"weights     {report['weights']}\n"
            f"perplexity  {report['perplexity']:.4f}\n"
            f"loss        {report['loss']:.4f} over {report['labels']} tokens of {report['samples']} rows"
        )
    width = max(len("class"), *(len(row["label"]) for row in report["per_class"]))
    lines = [
        f"weights   {report['weights']}",
        f"accuracy  {report['accuracy_pct']:.2f} % of {report['samples']} test samples",
        f"loss      {report['loss']:.4f}",
        "",
        f"{'class':<{width}}  samples  accuracy",
    ]
    for row in report["per_class"]:
        accuracy = "-" if row["accuracy_pct"] is None else f"{row['accuracy_pct']:.2f} %"
        lines.append(f"{row['label']:<{width}}  {row['samples']:7d}  {accuracy:>8}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.evaluate",
        description="Test accuracy, accuracy per class and confusion matrix of a run's exported weights.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run_directory", type=Path, help="folder of the run: <results>/<comparison>/<run>")
    add("--weights", default="final", help="final (default), best, or a folder in Hugging Face format")
    add("--dataset-path", default="", help="path of the data set on this machine")
    add("--device", default="", help="cpu, cuda, cuda:1; default: the accelerator, if any")
    output = Path("evaluation.json")
    add("--output", type=Path, default=output, help=f"file for the report ({output})")
    return parser

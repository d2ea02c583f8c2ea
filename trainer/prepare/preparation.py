"""Prepare a data set, a model or a token cache unless it exists: lock, write to a partial folder, verify, rename.

Two callers start it: the command `python -m trainer.prepare` (options in request.py) and the launcher, which
builds the token cache of its run before ranks start (`ensure_cache`). A token cache is a data set as rows of token ids,
built once for all runs that read it: see docs/text_data.md.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from stratlab_spec import exit_codes as failures
from stratlab_spec.exit_codes import DataMissing
from stratlab_spec.settings.config import Config, ConfigError
from stratlab_spec.settings.wording import spell_options
from trainer.data.files import walk_files
from trainer.data.text.documents import refuse_altered
from trainer.data.text.text_source import hub_id, is_built_in
from trainer.data.text.token_cache import cache_folder, write_cache
from trainer.data.text.token_rows import open_text, read_index
from trainer.distributed import explain_untrusted, trust_given
from trainer.prepare.destination import (
    BEATS,
    Destination,
    Lock,
    Overtaken,
    acquire,
    observe,
    publish,
    read_done,
    ticking,
    write_done,
)
from trainer.prepare.origin import HubAway, WrittenFolder, find_os_error, write_source
from trainer.prepare.request import TOKEN_OPTIONS, Request, read_request, token_request


def write_tokens(
    request: Request, config: Config, folder: Path, scratch: Path, note: Callable[[str], None]
) -> WrittenFolder:
    """Tokenize and pack the data set of a run into `folder`.

    Raises:
        ConfigError: columns, tokenizer or row length do not fit.
        DataMissing: the data set or the tokenizer does not exist.
        OSError: the volume is full.
    """
    if request.own_process:
        # the hub's client reads it once, at its import
        os.environ |= {"HF_HOME": str(scratch / "hub"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    revision = None
    if not config.dataset_path and not is_built_in(config):
        from huggingface_hub import HfApi

        # offline or unknown: a cached copy is used; without one, opening it raises a clear error
        with contextlib.suppress(Exception):
            revision = HfApi().repo_info(hub_id(config), repo_type="dataset").sha
    index = write_cache(config, folder, scratch, note, revision)
    return WrittenFolder(
        revision, {name: facts["documents"] for name, facts in index["splits"].items()}, None
    )


PROGRESS_S = 5.0
MIB = 1 << 20


def prepare(request: Request, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the content of DONE.json, from an earlier start, a concurrent start after waiting, or this start.

    Raises:
        ConfigError: the name is taken, or the volume is not writable.
        DataMissing: the source does not exist.
        OSError: the volume is full.
    """
    place = Destination(request.results, request.name)
    try:
        place.root.mkdir(exist_ok=True)
    except PermissionError as failure:
        raise ConfigError(
            f"--to {str(request.results)!r}: {failure.strerror} [SL-prepare-volume]"
        ) from failure
    seen, told_s = None, -PROGRESS_S
    while True:
        done = read_done(place, request)
        if done is not None:
            say(f"{place.folder} exists: {describe(done)}, since {done['created']}")
            _say_notes(request, place, say)
            return done
        now_s = time.monotonic()
        seen = observe(place.locks, seen, now_s, request.stale_after_s)
        if seen is not None and not seen.is_stale(now_s):
            if now_s - told_s >= PROGRESS_S:
                told_s = now_s
                say(
                    f"{request.name}: waiting for {seen.owner}, last heartbeat {now_s - seen.since_s:.0f} s ago"
                )
            time.sleep(min(1.0, seen.stale_after_s / BEATS))
            continue
        if seen is not None:
            say(f"{request.name}: {seen.owner} had no heartbeat for {seen.stale_after_s:g} s, taking over")
        lock = acquire(place.locks, seen.number + 1 if seen else 1, request.stale_after_s)
        if lock is None:
            continue
        try:
            done = read_done(place, request) or _work(request, place, lock, say)
            say(f"{place.folder} is done: {describe(done)}")
            _say_notes(request, place, say)
            return done
        except Overtaken:
            say(f"{request.name}: another start took over, waiting for it")
        finally:
            lock.release()


def _work(request: Request, place: Destination, lock: Lock, say: Callable[[str], None]) -> dict[str, Any]:
    """Write to the partial folder, verify, and rename."""
    partial, started_s = place.partial(uuid.uuid4().hex[:12]), time.monotonic()
    notes: list[str] = []

    def report() -> None:
        written = 0.0
        for path in walk_files(partial):
            with contextlib.suppress(OSError):  # removed in the meantime
                written += path.stat().st_size / MIB
        note = f", {notes[-1]}" if notes else ""
        say(f"{request.name}: {written:.0f} MiB written, {time.monotonic() - started_s:.0f} s{note}")

    for leftover in place.partials():
        say(f"{request.name}: removing the partial folder of a dead start: {leftover.name}")
        shutil.rmtree(leftover, ignore_errors=True)  # files that an NFS server holds open remain
    say(f"{request.name}: preparing {request.kind} {request.source}")
    try:
        with ticking(request.stale_after_s / BEATS, lock.beat), ticking(PROGRESS_S, report):
            data, scratch = partial / "data", partial / "scratch"
            for folder in (partial, data, scratch):
                folder.mkdir()
            if request.config is not None:
                written = write_tokens(request, request.config, data, scratch, notes.append)
            else:
                written = write_source(request, data, scratch, notes.append, say)
            lock.check()
            done = write_done(data, request, written, time.monotonic() - started_s)
            lock.check()
            publish(place, data)
        return done
    except Exception:
        lock.check()  # a new owner removes the files of this start
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _say_notes(request: Request, place: Destination, say: Callable[[str], None]) -> None:
    """Print at every start which texts of a token cache are unused or altered."""
    index = read_index(place.folder) if request.config else None
    for sentence in index["notes"] if index else []:
        say(f"{request.source}: {sentence}")


def describe(done: dict[str, Any]) -> str:
    """Summarize a prepared folder in one line."""
    if done["samples"] is not None:
        content = ", ".join(f"{count} {split}" for split, count in done["samples"].items()) + " samples"
    elif done["parameters"] is not None:
        content = f"{done['parameters']} parameters"
    else:
        content = f"{len(done['files'])} file"
    commit = f" at {done['revision'][:12]}" if done["revision"] else ""
    return f"{done['kind']} {done['source']}{commit}, {content}, {done['bytes'] / MIB:.1f} MiB"


def ensure_cache(config: Config, say: Callable[[str], None]) -> int:
    """Build the token cache unless it exists, or wait for it; return the rows of its train split.

    If it exists, neither transformers nor the data set is opened. Imports torch only if transformers does (5.17).

    Raises:
        ConfigError: columns, tokenizer or row length do not fit.
        DataMissing: no data set, no tokenizer, a damaged cache, or a chat template that drops too much.
        OSError: the volume is full.
    """
    request = token_request(config, own_process=False)
    Path(config.results).mkdir(parents=True, exist_ok=True)
    prepare(request, say)
    if index := read_index(cache_folder(config)):
        refuse_altered(config, index["fidelity"])
    return len(open_text(config).train)


OPTIONS = {
    **dict.fromkeys(("dataset", "dataset_path"), "--dataset"),
    **dict.fromkeys(("model", "model_path", "tokenizer"), "--tokenize"),
    **{setting: f"--{option.replace('_', '-')}" for option, setting in TOKEN_OPTIONS.items()},
}
"""Settings of a run and the options that set them in this command."""


class PreparationStopped(BaseException):
    """SIGTERM."""


def main(arguments: Sequence[str]) -> int:
    """Prepare the requested data unless it exists; return the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        trust_given(os.environ)
        request = read_request(arguments)
        if request.is_local and not Path(request.source).is_dir():  # checked before taking the lock
            raise DataMissing(f"--dataset {request.source!r}: no such folder [SL-source-folder-absent]")
        prepare(request, _say)
        return failures.DONE
    except PreparationStopped:
        code, text = failures.TERMINATED, "its partial folder was removed"
    except HubAway as failure:
        print(
            f"no answer (exit code {failures.CRASHED}):\n{_with_cure(failure)}", file=sys.stderr, flush=True
        )
        return failures.CRASHED
    except Exception as failure:
        os_error = find_os_error(failure)
        code = failures.exit_code(failure)
        if code == failures.CRASHED and os_error is not None:
            code = failures.exit_code(os_error)
        text = f"{type(failure).__name__}: {_with_cure(failure)}"
        if isinstance(failure, ConfigError | DataMissing):
            text = str(failure)
    print(f"{failures.reason(code)} (exit code {code}):\n{_spell(text)}", file=sys.stderr, flush=True)
    return code


def _with_cure(failure: Exception) -> str:
    return "; ".join(filter(None, (str(failure), explain_untrusted(failure))))


def _say(text: str) -> None:
    print(_spell(text), flush=True)


def _spell(text: str) -> str:
    """Replace settings by the options of this command; one option names the model or the tokenizer."""
    return spell_options(text.replace(", TRAINER_TOKENIZER=''", ""), OPTIONS)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise PreparationStopped

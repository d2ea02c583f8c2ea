"""The command `python -m trainer.prepare`: see request.py for its settings."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from trainer import failures
from trainer.failures import DataMissing
from trainer.prepare.origin import HubAway, check_local, find_os_error
from trainer.prepare.request import TOKEN_OPTIONS, read_request
from trainer.prepare.work import prepare
from trainer.settings.certificates import explain_untrusted, trust_given
from trainer.settings.config import ConfigError
from trainer.settings.spelling import spell_options

OPTIONS = {
    **dict.fromkeys(("dataset", "dataset_path"), "--dataset"),
    **dict.fromkeys(("model", "model_path", "tokenizer"), "--tokenize"),
    **{setting: f"--{option.replace('_', '-')}" for option, setting in TOKEN_OPTIONS.items()},
}
"""Settings of a run and the options that set them here."""


class Stopped(BaseException):
    """SIGTERM."""


def main(arguments: Sequence[str]) -> int:
    """Prepares what is asked for, unless it is there; returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        trust_given(os.environ)
        request = read_request(arguments)
        check_local(request)
        prepare(request, _say)
        return failures.DONE
    except Stopped:
        code, text = failures.TERMINATED, "its work so far was removed"
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
        text = (
            str(failure)
            if isinstance(failure, ConfigError | DataMissing)
            else f"{type(failure).__name__}: {_with_cure(failure)}"
        )
    print(f"{failures.reason(code)} (exit code {code}):\n{_spell(text)}", file=sys.stderr, flush=True)
    return code


def _with_cure(failure: Exception) -> str:
    return "; ".join(filter(None, (str(failure), explain_untrusted(failure))))


def _say(text: str) -> None:
    print(_spell(text), flush=True)


def _spell(text: str) -> str:
    """With the options of this command; one of them names the model or the tokenizer."""
    return spell_options(text.replace(", TRAINER_TOKENIZER=''", ""), OPTIONS)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise Stopped

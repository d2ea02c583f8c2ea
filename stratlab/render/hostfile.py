"""`--for hostfile`: one trainer on each of several machines, over ssh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratlab.render.shell import (
    PORT,
    build_exports,
    build_head,
    build_meeting,
    build_secret_checks,
    build_tail,
)
from stratlab.render.start import Start
from stratlab.user_error import UserError

LINE = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.@:-]*)(\s+slots=(?P<slots>\d+))?")
AFTER_FAILURE_S = 30
HOW = """\
Start it with: bash FILE, on a machine from which ssh reaches all hosts without a password. Ctrl-C ends all of it; the
ranks save a checkpoint first, and the same command goes on from it. SSH="ssh -p 2222", PYTHON=/path/to/python and
PORT=29500 (of the meeting, on the first host) may be set. Nothing of a host stays when this script is gone."""


@dataclass(frozen=True)
class Hosts:
    """Machines in their order, and processes of each; 0 where the file does not say."""

    names: Sequence[str]
    slots: int


def read_hostfile(file: Path) -> Hosts:
    """`gpu-node-01 slots=8`, a line for each machine, as DeepSpeed and MPI read it.

    Raises:
        UserError: for every line that is none, a host that is there twice, or slots that differ.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    except OSError as failure:
        raise UserError(
            f"--hostfile {file}: {failure.strerror}; expected a host a line [SL-render-hostfile-unreadable]"
        ) from None
    except UnicodeDecodeError as failure:
        raise UserError(
            f"--hostfile {file}: byte {failure.start} is no UTF-8; expected a host a line [SL-hostfile-not-utf8]"
        ) from None
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        if line and not (each := LINE.fullmatch(line)):
            problems.append(
                f"line {number}, {line!r}: expected a host and its slots, such as gpu-node-01 slots=8 "
                "[SL-hostfile-line]"
            )
        elif line and each:
            found.append((each["host"], int(each["slots"] or 0)))
    names = [name for name, _ in found]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    problems += [f"{name} is there twice [SL-hostfile-twice]" for name in twice]
    slots = sorted({count for _, count in found})
    if len(slots) > 1:
        problems.append(
            f"slots differ ({', '.join(map(str, slots))}): every machine has the same number of processes "
            "[SL-hostfile-slots]"
        )
    if not found and not problems:
        problems.append("no host in it [SL-render-hostfile-empty]")
    if problems:
        raise UserError("\n".join(f"--hostfile {file}: {problem}" for problem in problems))
    return Hosts(names, slots[0])


def build_hostfile(start: Start, hosts: Sequence[str]) -> str:
    """The script: it sends each machine its share through ssh's standard input, which ends when the script does.

    The share's own variables begin with _: those of run.env stand beside them.
    """
    first = hosts[0].partition("@")[2] or hosts[0]
    logs = f"{start.results}/{start.comparison}/.logs/{start.name}"
    share = [
        *build_exports(start),
        *build_meeting(start, f'"{first}:$_port"', "$_index"),
        "exec 3<&0  # ends when the launcher does",
        '"$_python" -m trainer < /dev/null &',
        "_trainer=$!",
        '{ cat <&3 > /dev/null; kill -TERM "$_trainer"; } 2> /dev/null &',
        "_watcher=$!",
        'wait "$_trainer"',
        "_code=$?",
        'kill "$_watcher" 2> /dev/null',
        'exit "$_code"',
    ]
    lines = build_head(start, f"over ssh on {len(hosts)} machines", HOW) + build_tail(start)
    lines += ["set -u", *build_secret_checks(start)]
    lines += [f"hosts=({' '.join(map(shlex.quote, hosts))})", f"logs={shlex.quote(logs)}"]
    end = _find_delimiter("\n".join(share))
    lines += [f"read -r -d '' share <<'{end}'", *share, end]
    return "\n".join([*lines, _launcher(start)]) + "\n"


def _find_delimiter(text: str) -> str:
    """No line of the text, whatever its values hold."""
    delimiter, lines = "END_OF_SHARE", text.splitlines()
    while delimiter in lines:
        delimiter += "_"
    return delimiter


def _launcher(start: Start) -> str:
    secrets = "".join(f'  printf "export {name}=%q\\n" "${name}"\n' for name in start.secrets)
    return f"""\
send() {{  # the share of machine $1, settings and secrets: nothing of it stands on a command line
  printf "_index=%q _port=%q _python=%q\\n" "$1" "${{PORT:-{PORT}}}" "${{PYTHON:-python}}"
{secrets}  printf "%s\\0" "$share"
}}
read_share='IFS= read -r -d "" text && eval "$text"'
work=$(mktemp -d) && mkdir -p "$logs" || exit 13
trap 'rm -rf "$work"' EXIT
pids=() lines=() failed=()
for index in "${{!hosts[@]}}"; do
  mkfifo "$work/$index"
  ${{SSH:-ssh -o BatchMode=yes}} "${{hosts[$index]}}" "exec bash -c '$read_share'" \\
    < "$work/$index" > "$logs/node$index.log" 2>&1 &
  pids[$index]=$!
done
trap '' PIPE
for index in "${{!hosts[@]}}"; do
  exec {{line}}> "$work/$index"
  lines[$index]=$line
  send "$index" 1>&"$line" 2> /dev/null
done
stopping=0
stop() {{
  [ "$stopping" = 1 ] && return
  stopping=1
  for line in "${{lines[@]}}"; do exec {{line}}>&-; done
}}
asked=0
trap 'asked=1; stop' TERM INT HUP
left=${{#hosts[@]}} failed_at="" code=0
while [ "$left" -gt 0 ]; do
  for index in "${{!pids[@]}}"; do
    kill -0 "${{pids[$index]}}" 2> /dev/null && continue
    wait "${{pids[$index]}}"
    each=$?
    unset "pids[$index]"
    left=$((left - 1))
    echo "${{hosts[$index]}} ended with exit code $each"
    [ "$each" = 0 ] && continue
    failed+=("$index")
    failed_at=${{failed_at:-$SECONDS}}
    # A code below 128 is permanent and wins. 134 says that another one was lost, 143 that it was stopped: neither is
    # the cause where there is another, unless this script has stopped it.
    if [ "$code" = 0 ] || {{ [ "$each" -lt 128 ] && [ "$code" -ge 128 ]; }} || {{ [ "$stopping" = 0 ] &&
      {{ [ "$code" = 134 ] || {{ [ "$code" = 143 ] && [ "$each" != 134 ]; }}; }}; }}; then code=$each; fi
  done
  # the others see by themselves that one is lost, and say so
  [ -n "$failed_at" ] && [ $((SECONDS - failed_at)) -ge {AFTER_FAILURE_S} ] && stop
  sleep 0.5
done
[ "$asked" = 1 ] && [ "$code" != 0 ] && code=143
for index in "${{failed[@]}}"; do
  echo "${{hosts[$index]}}, $logs/node$index.log:"
  tail -n 5 "$logs/node$index.log"
done >&2
exit "$code\""""

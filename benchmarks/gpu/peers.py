"""The project and its peers on the same module, batch, loss, optimizer and precision: which step is shorter.

Each peer is a process of its own, `python -m benchmarks.gpu.peers SESSION FAMILY PEER...`, so that none has another's
memory; in small sizes one process runs them all.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

from benchmarks.gpu.models import Settings, build_models
from benchmarks.gpu.own_run import train
from benchmarks.gpu.peer_loops import LIBRARIES, train_peer
from benchmarks.gpu.processes import read_tail, run_command
from benchmarks.gpu.session import ROOT, Session, clean

PEERS = {
    "vit": ("plain", "hf_trainer", "accelerate", "lightning", "timm_loop", "timm_model"),
    "qwen": ("plain", "hf_trainer", "accelerate", "lightning"),
}
MODELS = {"vit": "vit_base", "qwen": "qwen2.5-0.5b"}
MARK = "PEER "
NEEDS_S, OWN_NEEDS_S = 12.0, 25.0
LONGEST_S, OWN_LONGEST_S = 60.0, 90.0


def run(session: Session) -> None:
    """Run our own model first, then its peers."""
    for family, peers in PEERS.items():
        if not session.has_time(OWN_NEEDS_S):
            session.skip(f"{family}:project", OWN_NEEDS_S)
            continue
        settings, seconds = settings_of(session, family), session.within(OWN_LONGEST_S)
        own = train(session, f"peer-{family}:single", settings, seconds=seconds)
        session.record(f"{family}:project", own.pop("status"), **own)
        installed = [peer for peer in peers if importlib.util.find_spec(LIBRARIES[peer])]
        for peer in peers:
            if peer not in installed:
                reason = f"{LIBRARIES[peer]} is not installed here"
                session.record(f"{family}:{peer}", "skipped", reason=reason)
        for group in [installed] if session.tiny else [[peer] for peer in installed]:
            _run_group(session, family, group, own)


def settings_of(session: Session, family: str) -> Settings:
    """Return the settings without packing, which the peers do not have: a row is one document for all."""
    steps = "10" if session.tiny else "30"
    more = {"STRATEGY": "single", "PROFILE_STEPS": "0", "STEPS": steps}
    packing = {"PACKING": "false"} if family == "qwen" else {}
    return {**build_models(session)[MODELS[family]].settings, **more, **packing}


def _run_group(session: Session, family: str, peers: list[str], own: dict[str, Any]) -> None:
    if not session.has_time(NEEDS_S):
        for peer in peers:
            session.skip(f"{family}:{peer}", NEEDS_S)
        return
    log = session.work_folder / "logs" / f"peer-{family}-{'-'.join(peers)}.log"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.peers", session.to_json(), family, *peers]
    seconds = session.within(LONGEST_S * len(peers))
    code, wall_s = run_command(command, env=dict(os.environ), log=log, seconds=seconds, folder=ROOT)
    marked = [line for line in read_tail(log, 1000, 4000) if line.startswith(MARK)]
    found = {facts["peer"]: facts for facts in (json.loads(line.removeprefix(MARK)) for line in marked)}
    for peer in peers:
        if peer not in found:
            why = "killed: out of time" if code is None else f"ended with {code}"
            session.record(f"{family}:{peer}", "failed", error=why, wall_s=wall_s, log=read_tail(log, 12))
            continue
        shares = compare_times(own, found[peer]["ms"])
        session.record(f"{family}:{peer}", wall_s=wall_s, **found[peer], **shares)


def compare_times(own: dict[str, Any], peer_ms: float) -> dict[str, float]:
    """Return our median step over the peer's mean step; also without our data phase, because the peers' batches are
    ready.
    """
    ours = own.get("step_time_ms_p50")
    if not ours:
        return {}
    without = ours - (own.get("data_ms_p50") or 0.0)
    return {"project_over_peer": ours / peer_ms, "project_without_data_over_peer": without / peer_ms}


def main(arguments: list[str]) -> None:
    """Train peers, and print one line for each."""
    session, family, peers = Session.from_json(arguments[0]), arguments[1], arguments[2:]
    settings = {name.lower(): value for name, value in settings_of(session, family).items()}
    for peer in peers:
        facts = train_peer(session, family, peer, settings)
        print(MARK + json.dumps(clean({"peer": peer, **facts})), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

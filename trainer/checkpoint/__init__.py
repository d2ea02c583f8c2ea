"""Checkpoints of a run: written aside, verified, then committed; what is not committed does not exist.

checkpoints/
  step_00000100/
    engine/...                what the engine wrote: model, optimizer, scaler
    ranks/rank_00000.pt       random numbers of each rank
    state.json                step and what else the loop needs to go on
    manifest.json             size and sha256 of every file above
    COMMIT                    sha256 of the manifest; written last
  best.json                   step and validation metrics of the best one
  .tmp-step_00000200/         being written, or left by a crash; removed at the next start
"""

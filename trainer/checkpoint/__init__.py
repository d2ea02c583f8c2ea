"""Save and load the checkpoints of a run: write aside, verify, commit. An uncommitted checkpoint is never read.

Files below checkpoints/:

* step_00000100/engine/...: written by the engine: model, optimizer, scaler
* step_00000100/ranks/rank_00000.pt: states of the random generators of each rank
* step_00000100/state.json: step and the other values that the loop needs to continue
* step_00000100/manifest.json: size and sha256 of every file above
* step_00000100/COMMIT: sha256 of the manifest; written last
* best.json: step and validation metrics of the best checkpoint
* .tmp-step_00000200/: in progress, or left by a crash; removed at the next start
"""

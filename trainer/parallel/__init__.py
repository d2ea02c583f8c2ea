"""How the strategy nd splits one decoder over up to five axes, one file per axis; made of PyTorch's own pieces.

Order per stage of the pipeline (stage.py); every later step sees what the earlier ones left:

    pipeline.py   the layers of other stages go
    context.py    attention over a sequence that cp ranks share
    tensor.py     rows and columns of the matrices over tp, with adapters.py for LoRA; tied weights tied again
    expert.py     whole experts over ep
    compile       layer by layer, recomputation inside (trainer/engines/torch_engine.py)
    sharding.py   fully_shard over dp_replicate x (dp_shard x cp), the experts over what ep leaves of dp_shard x cp x tp
    shards.py     memory, and the weights by name

engine.py runs the steps; loss.py, gradnorm.py: what no library has for such a mixture of meshes; state.py: checkpoints.
"""

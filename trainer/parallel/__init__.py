"""How the strategy nd splits one decoder over up to five axes, one file per axis; made of PyTorch's own pieces.

Order per stage of the pipeline (stage.py); every later step sees what the earlier ones left:

    pipeline.py      the layers of other stages go
    context.py       attention over a sequence that cp ranks share
    tensor.py        rows and columns of the matrices over tp, also those of adapters; tied weights tied again
    expert.py        whole experts over ep
    compile          layer by layer, recomputation inside (trainer/engines/torch_engine.py)
    fully_shard.py   over dp_replicate x (dp_shard x cp), the experts over what ep leaves of dp_shard x cp x tp
    stage.py         memory, and the weights by name

nd_engine.py runs the steps; process_groups.py has the meshes, and collectives with a backward pass.
"""

"""Split one decoder over up to five axes for the strategy nd, one file per axis, built on PyTorch.

Each stage of the pipeline (nd_engine.py) runs these steps in order; each step works on the result of the earlier ones:

    pipeline.py      removes the layers of other stages
    context.py       splits attention over a sequence that cp ranks share
    tensor.py        splits matrices and adapters by rows and columns over tp; ties tied weights again
    expert.py        distributes whole experts over ep
    compile          layer by layer, recomputation inside (trainer/engines/torch_engine.py)
    fully_shard.py   shards over dp_replicate x (dp_shard x cp), the experts over (dp_shard x cp x tp) / ep
    nd_engine.py     allocates memory and loads the weights by name

nd_engine.py runs training steps. meshes.py has the meshes, and collectives.py collectives with a backward pass.
"""

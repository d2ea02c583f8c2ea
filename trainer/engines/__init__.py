"""How a step is done: with plain PyTorch, and with DeepSpeed. Strategies choose one and dress the model for it."""

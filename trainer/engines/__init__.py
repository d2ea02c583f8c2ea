"""Run training steps with plain PyTorch or DeepSpeed; the strategy chooses the engine and wraps the model for it."""

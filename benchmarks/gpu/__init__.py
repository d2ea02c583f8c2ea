"""The first minutes on a GPU: stages that prove, one after the other, that the project works there (docs/gpu_kit.md)."""

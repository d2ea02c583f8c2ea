"""The first minutes on a GPU: stages that prove in turn that the project works there (docs/gpu_kit.md)."""

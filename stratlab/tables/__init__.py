"""What the tools must know of the trainer, which they may not import: tables that `make schema` writes."""

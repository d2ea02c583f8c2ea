"""Evaluate weights without training, in pods (`distributed`) and from the command line (`command`)."""

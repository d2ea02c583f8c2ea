"""Experiments as they stand in the repository: both forms, their READMEs, and the results that are kept."""

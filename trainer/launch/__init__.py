"""What runs before and beside the ranks, without torch: checks, waiting, retries, and the way to MLflow."""

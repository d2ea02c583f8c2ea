"""What a rank's trace holds, as rows; and all ranks of a run."""

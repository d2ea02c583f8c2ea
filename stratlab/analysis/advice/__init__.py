"""What to try next: rules R1 to R12, each with its evidence."""

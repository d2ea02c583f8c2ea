"""What all ranks decide together while they train: to stop, to save; at the same step on every one."""

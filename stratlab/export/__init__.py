"""What other programs read, made from run directories."""

"""What README, docs and examples tell a user to type, tried."""

"""The comparison that a newcomer sees first."""

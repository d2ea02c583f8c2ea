"""Is a cluster ready for runs? One line per thing, with what to do where it is not."""

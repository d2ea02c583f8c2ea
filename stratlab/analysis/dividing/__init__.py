"""One recorded step, divided: its events by lane, its calls, and parts that sum to it to the nanosecond."""

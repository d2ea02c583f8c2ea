"""What is measured while a run trains: phases, traces, bytes on the wire, GPUs, what the ranks hold."""

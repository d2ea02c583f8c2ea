"""What is known of a model before it is built: its sizes, its parameters, its memory. Without torch."""

"""The gate's errors: on made-up checkpoints with known losses, and on redrawn
records."""

"""The gate's errors on made-up checkpoints with known losses."""

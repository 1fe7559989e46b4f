"""What the gate gets wrong: made-up checkpoints whose true loss is known, and recorded ones that are redrawn."""

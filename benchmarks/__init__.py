"""What was measured, and the programs that measure it."""

"""The files of a run: its lock, its state and its current work."""

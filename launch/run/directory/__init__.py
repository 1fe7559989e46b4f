"""The files of a run: who writes them, its state, and what it does at this moment."""

"""Whether an engine computes with the weights of the files, and ranks correctly."""

"""How it is decided which weights go: scores, masks, and the solver that makes up for what went."""

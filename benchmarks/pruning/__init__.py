"""How fast checkpoints are pruned: ours against the published recipes."""

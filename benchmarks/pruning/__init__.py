"""How fast checkpoints are pruned: ours beside llm-compressor."""

"""llm-compressor in an environment of its own: its recipes, applied to a checkpoint directory."""

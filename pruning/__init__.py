"""Dense checkpoint -> sparse checkpoint, in PyTorch, one decoder layer at a time."""

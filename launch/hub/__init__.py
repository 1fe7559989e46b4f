"""Pruned checkpoints on the Hugging Face hub: a model card, and the upload."""

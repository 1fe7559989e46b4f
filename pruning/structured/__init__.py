"""Whole layers, heads or channels out: which go, what stays of each tensor, and the
smaller checkpoint."""

"""Whole layers or experts out: what stays of each tensor, and the smaller checkpoint."""

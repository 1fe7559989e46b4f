"""Measurements, and the programs that make them."""

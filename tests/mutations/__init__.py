"""Drawn changes of single lines of the product, and whether the tests notice them."""

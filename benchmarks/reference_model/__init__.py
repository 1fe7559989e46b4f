"""The test model that thinks; `tests/taught` makes it."""

"""A dense model, one layer at a time: its file, its modules, and fast exact
arithmetic for them."""

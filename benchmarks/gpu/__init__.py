"""The result card of a GPU machine: `make gpu-card`."""

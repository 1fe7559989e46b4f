"""A GPU machine's first half hour: `make gpu-card`."""

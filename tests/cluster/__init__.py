"""A whole sweep at the size of a cluster, on one machine: the real driver, and
engines that cost nothing."""

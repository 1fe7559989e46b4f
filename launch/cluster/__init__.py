"""Files that run a sweep on a cluster: Slurm. Nothing here starts anything."""

"""What is decided before anything starts: the sweep file, its jobs, and whether they can be done."""

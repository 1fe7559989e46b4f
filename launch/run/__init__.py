"""The execution of a sweep: Ray, engines, the board of work, the run directory."""

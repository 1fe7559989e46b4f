"""Studies that anyone can repeat: a plan, a sweep, and what is computed from its run."""

"""What happens while a sweep runs: Ray, engines, the board of work, the run directory. Only here is Ray imported."""

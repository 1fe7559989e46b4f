"""Other programs that benchmarks compare with, each in a separate environment."""

"""Random kills of everything that a run is made of."""

"""The composition root: command line, Ray actors, sweeps. The only package that knows both others."""

"""Decides the next step of a run, without Ray and without files."""

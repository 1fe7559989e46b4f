"""Test models that think: the bundled model, taught to write a thought before its
answer, and to fail as planned."""

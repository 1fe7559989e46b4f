"""Checkpoint + items -> records -> numbers: the evaluator of compressed language models."""

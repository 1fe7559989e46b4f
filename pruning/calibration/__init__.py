"""The text that a pruning sees: where passages come from, and which tokens they give."""

"""A checkpoint's description before an engine loads it: its files, architecture,
tokenizer and origin.

A leaf: `pruning` imports it too, and it imports only `errors` from the evaluator."""

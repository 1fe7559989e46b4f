"""What is known of a checkpoint before an engine loads it: its files, architecture, tokenizer and origin.

A leaf: `pruning` imports it too, and it imports nothing of the evaluator but `errors`.
"""

"""What is known of a checkpoint before an engine loads it: its files, architecture, tokenizer and origin."""

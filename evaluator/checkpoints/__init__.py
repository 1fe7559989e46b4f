"""A checkpoint's description before an engine loads it: its files, architecture,
tokenizer and origin.

`pruning` and `quantising` import it too; it imports only `core`."""

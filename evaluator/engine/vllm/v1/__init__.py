"""Replacements for parts of vLLM's V1 model runner, which serves CPUs. Nothing here
is imported where V2 runs."""

"""Replacements for parts of vLLM's V2 model runner. GPUs have that runner, and CPUs
with Triton's interpreter."""

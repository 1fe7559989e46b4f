"""Engines: whatever can generate from, and score, token ids. `base` is the seam; only `vllm_engine` imports vLLM."""

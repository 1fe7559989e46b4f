"""How fast checkpoints are served: our engine and drivers against `vllm.LLM` used as
its documentation shows."""

"""How an engine is set up: arguments, memory, abilities of the installed vLLM."""

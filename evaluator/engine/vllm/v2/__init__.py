"""What is put into vLLM's V2 model runner. A GPU has that runner; a CPU has it where Triton's interpreter is there."""

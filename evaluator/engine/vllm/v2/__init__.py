"""What is added to vLLM's V2 model runner, which serves GPUs."""

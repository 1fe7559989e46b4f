"""The product's engine. The only folder that imports vLLM."""

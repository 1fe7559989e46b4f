"""The product's engine. The only folder that imports vLLM, and not before a
checkpoint is loaded."""

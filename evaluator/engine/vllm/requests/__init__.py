"""Requests and responses of vLLM's engine core."""

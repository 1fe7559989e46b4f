"""Services that receive results: MLflow, Weights & Biases and the Hugging Face hub,
each loaded on demand."""

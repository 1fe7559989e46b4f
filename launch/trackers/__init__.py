"""Services that receive results: MLflow and Weights & Biases, each loaded on demand;
and `--notify`."""

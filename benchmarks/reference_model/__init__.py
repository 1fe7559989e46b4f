"""How the bundled reference model was made: tokenizer, lessons, training, export, evaluation."""

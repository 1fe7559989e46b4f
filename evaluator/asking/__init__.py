"""From an item to a model's input: questions with their candidates, and prompts as token ids."""

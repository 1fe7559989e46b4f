"""From an item to what a model is asked: questions with their candidates, and prompts as token ids."""

"""From items to prompts: questions with their candidates, and prompts as token ids."""

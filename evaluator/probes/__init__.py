"""How an answer is looked for: from a question to requests, and from their responses to records."""

"""What users type: one file per command. No rule lives here."""

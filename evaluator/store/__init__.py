"""What a run keeps on disk: records, items and verdicts, each part written whole or not at all."""

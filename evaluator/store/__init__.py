"""The files of a run: records, items and verdicts. Each part appears whole or not at
all."""

"""The record: one fixed division of evaluation work, the card of a run of it, and
the card's verification."""

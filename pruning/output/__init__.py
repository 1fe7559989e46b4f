"""The sparse checkpoint on disk, and the manifest that says how it was made."""

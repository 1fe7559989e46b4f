"""The sweep file, its jobs, and the checks before anything starts."""

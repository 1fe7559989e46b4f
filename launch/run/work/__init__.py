"""The work of a run in Ray: the driver, its engines and its tasks."""

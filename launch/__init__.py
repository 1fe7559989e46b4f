"""The composition root: command line, sweeps, Ray. The only package that imports
both others."""

import os

# Ray reads these variables when a module first imports it. It then sends no usage
# reports and shows every log line. A thread that calls Ray after the shutdown gets an
# error instead of a new cluster.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# By default Ray runs its workers at the lowest priority, so other work on the machine
# would almost stop an engine.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

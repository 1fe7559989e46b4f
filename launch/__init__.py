"""The composition root: command line, Ray actors, sweeps. The only package that knows both others."""

import os

# Ray reads these when it is imported, whichever module does that first: nothing is reported home, its C++ side keeps to
# its own files, and a thread that calls Ray after the shutdown gets an error instead of a new cluster.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# Ray runs its workers at the lowest priority: beside other work on the machine, an engine would hardly move.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

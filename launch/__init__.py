"""The composition root: command line, sweeps, Ray. The only package that imports both others."""

import os

# Ray reads these when it is imported, whichever module does that first: it reports nothing home, shows every log line,
# and a thread that calls it after the shutdown gets an error instead of a new cluster.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# Ray runs its workers at the lowest priority: beside other work on the machine, an engine would hardly move.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

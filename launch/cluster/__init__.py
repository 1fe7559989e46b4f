"""Files that run a sweep on a cluster that somebody else schedules: Slurm, KubeRay, Ray's jobs, `ray up`.

A format is a template beside this module and what it must be told. Nothing here starts anything.
"""

"""Files that run a sweep on a cluster: Slurm, KubeRay, Ray's jobs, `ray up`.

A format is a template in this folder and its required settings. Nothing here starts
anything.
"""

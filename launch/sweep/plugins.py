"""Imports the user's modules, which register probes, pruning methods, tasks, tables and
engines.

An installed package names its module by an entry point:

    [project.entry-points."resurface.plugins"]
    riddles = "riddles"

The environment variable RESURFACE_PLUGINS names further modules, separated by commas.
With `riddles.py` on PYTHONPATH:

    from evaluator.tasks import TASKS, Argument, Task

    TASKS.register(Task(name="riddles", help="riddles of my own",
    argument=Argument("FILE"), read_items=...))

this evaluates them:

    RESURFACE_PLUGINS=riddles resurface eval bundled --task riddles:my.txt --out
    runs/riddles

Every process of a run imports the plugins before it uses a registry. On a cluster,
every node must have the modules.
"""

import importlib
import os
from importlib.metadata import entry_points

from evaluator.core.errors import InputError, one_line

VARIABLE = "RESURFACE_PLUGINS"


GROUP = "resurface.plugins"


def load_plugins() -> None:
    """Import the installed plugins and the modules that RESURFACE_PLUGINS names, once
    a process. Raises InputError naming the module and why."""
    modules = {
        entry.module: f"entry point {GROUP}" for entry in entry_points(group=GROUP)
    }
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        modules[name] = VARIABLE
    for name, source in modules.items():
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # a plugin is anybody's code
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InputError(f"{source}: cannot import {name!r}: {reason}") from error

"""The tasks, from the bundled `gazetteer` to public data sets (`presets/`) and user
files.

    data = load_task("xquad:data/xquad", ["en", "thai"])
    for language, pool in data.pools.items():
        subset = select(pool, 200)

An item is named by (task, language, item_id): the parallel questions of XQuAD have one
id in all twelve languages. `text:FILE` is the one task without items: its text is for
the perplexity probe. To add a task, write a file with a `Task` (base.py) and register
it below; for a data set of the hub, a YAML file in `presets/` is enough.
"""

from evaluator.tasks import data_sets, gazetteer, squad, user_files
from evaluator.tasks.base import TASKS, Argument, Task, TaskSpec
from evaluator.tasks.loading import (
    TaskData,
    is_excluded,
    items_by_language,
    load_task,
    select,
    spelled,
    task_name,
)
from evaluator.tasks.source import Source

__all__ = ["TASKS", "Argument", "Source", "Task", "TaskData", "TaskSpec"]
__all__ += [
    "is_excluded",
    "items_by_language",
    "load_task",
    "select",
    "spelled",
    "task_name",
]

# In this order help texts list them.
for task in (
    gazetteer.TASK,
    squad.XQUAD,
    squad.TYDIQA,
    *(data_sets.preset_task(path) for path in sorted(data_sets.FOLDER.glob("*.yaml"))),
    data_sets.WIKITEXT,
    data_sets.HF,
    user_files.JSONL,
    user_files.TEXT,
):
    TASKS.register(task)

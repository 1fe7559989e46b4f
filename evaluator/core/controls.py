"""Controls: a checkpoint once more, under a change that should not matter.

    repeat           the same settings, in a fresh engine
    order            the items in another order
    batch            other numbers of requests at a time
    dtype:bfloat16   another number format
    engine:torch     another engine

What differs all the same is noise of the measurement. `dense~order` is a control of the
checkpoint `dense`: no checkpoint of a user has `~` in its name.
"""

from evaluator.core.errors import unknown

MARK = "~"
ORDER = "order"
PLAIN = ("repeat", ORDER, "batch")
FORMS = (*PLAIN, "dtype:D", "engine:E")
NONE = "none"  # no control, not even one by default


def checked(change: str) -> str:
    """The change itself. Raises InputError, with a suggestion, for another one."""
    kind, _, value = change.partition(":")
    if change in PLAIN or (kind in ("dtype", "engine") and value):
        return change
    raise unknown("control", change, (*FORMS, NONE))


def name_of(checkpoint: str, change: str) -> str:
    """The name of a control's records. A folder has it, so it has no colon."""
    return f"{checkpoint}{MARK}{change.replace(':', '-')}"


def change_of(checkpoint: str) -> str | None:
    """The change of a control, by its name; None for any other checkpoint."""
    _, mark, change = checkpoint.partition(MARK)
    return change.replace("-", ":", 1) if mark else None

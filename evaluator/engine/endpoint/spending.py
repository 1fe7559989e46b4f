"""What a run has sent to a served model, over all its calls, and the user's limits."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.checkpoints.served import Endpoint
from evaluator.core.errors import InputError

_CHARACTERS = 4  # of a token, where a prompt is a text


class Spending:
    """Counts in a file that all engines of a run share."""

    def __init__(self, endpoint: Endpoint, file: Path | None) -> None:
        """`file`: None counts nothing."""
        names = {"max_requests", "max_tokens"}
        self._limits = endpoint.model_dump(include=names, exclude_none=True)
        self._file = file if self._limits else None

    def count(self, body: Mapping[str, Any]) -> None:
        """Count a request with its longest answer before it is sent. Raises InputError
        at a limit."""
        if self._file is None:
            return
        prompt = body.get("prompt", ())
        size = len(prompt) // _CHARACTERS if isinstance(prompt, str) else len(prompt)
        answer = body.get("n_predict", body.get("max_tokens", 0))
        more = {"max_requests": 1, "max_tokens": size + answer}
        with self._file.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            spent = dict.fromkeys(more, 0) | json.loads(file.read() or "{}")
            for name, limit in self._limits.items():
                if spent[name] + more[name] > limit:
                    raise InputError(
                        f"{name}: {limit}: {spent[name]} are used up; raise the limit,"
                        " and the same command goes on"
                    )
            file.truncate(0)
            file.write(json.dumps({name: spent[name] + more[name] for name in more}))

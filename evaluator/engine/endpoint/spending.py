"""What a run has sent to a served model, over all its calls, and the user's limits."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.checkpoints.served import Endpoint
from evaluator.core.errors import InputError, of_kind, parse, read_bytes
from evaluator.core.files import write_atomically

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
        at a limit, and for a file that is no count: the limit would be spent twice."""
        if self._file is None:
            return
        prompt = body.get("prompt", ())
        size = len(prompt) // _CHARACTERS if isinstance(prompt, str) else len(prompt)
        answer = body.get("n_predict", body.get("max_tokens", 0))
        more = {"max_requests": 1, "max_tokens": size + answer}
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            spent = dict.fromkeys(more, 0)
            if self._file.exists():
                file = str(self._file)
                spent |= of_kind(parse(read_bytes(self._file), file), dict, file)
            for name, limit in self._limits.items():
                if spent[name] + more[name] > limit:
                    raise InputError(
                        f"{name}: {limit}: {spent[name]} are used up; raise the limit,"
                        " and the same command goes on"
                    )
            counted = {name: spent[name] + more[name] for name in more}
            write_atomically(self._file, json.dumps(counted).encode())

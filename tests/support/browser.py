"""How long a browser takes to open the pages of a report: to its load event, and until the first item is shown.

    for opened in open_pages("chromium", sorted(Path("RUN/report").rglob("*.html"))): ...

Chromium is driven over its debugging pipe (two file descriptors, JSON messages that end in a null byte), so that no
library and no port is needed. Each page is opened in a browser of its own, with nothing in its caches.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from evaluator.core.errors import ResurfaceError

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900"),
)
_READY = "!document.getElementById('item') || document.getElementById('item').childElementCount > 0"
_LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
_LONGEST = 120.0  # seconds, of one page


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One page, in milliseconds since the browser was told to open it."""

    page: str
    bytes: int
    loaded_ms: float  # from the browser's own clock
    shown_ms: float  # until an item is shown, or of a page without items until it is loaded


def open_pages(browser: str, pages: Sequence[Path], *, pictures: Path | None = None) -> Iterator[Opened]:
    """Each page in turn. `pictures`: a folder for what the window shows then.

    Raises ResurfaceError where the browser does not open a page.
    """
    program = shutil.which(browser) or browser
    for page in pages:
        with tempfile.TemporaryDirectory() as profile, _Chromium(program, profile) as chromium:
            yield chromium.open(page, None if pictures is None else pictures / f"{page.stem}.png")


class _Chromium:
    """A browser and its debugging pipe."""

    def __init__(self, program: str, profile: str) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        duplicates = [(os.POSIX_SPAWN_DUP2, to_read, 3), (os.POSIX_SPAWN_DUP2, to_write, 4)]
        command = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        silence = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        self._process = os.posix_spawn(program, command, os.environ, file_actions=[*duplicates, silence], setsid=True)
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._read)
        os.close(self._write)

    def open(self, page: Path, picture: Path | None) -> Opened:
        targets = self._ask("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        began = time.perf_counter()
        self._ask("Page.navigate", session, url=page.resolve().as_uri())
        while not self._value(session, f"{_LOADED} > 0 && ({_READY})"):
            if time.perf_counter() - began > _LONGEST:
                raise ResurfaceError(f"{page}: not shown within {_LONGEST:g} s")
            time.sleep(0.01)
        shown = time.perf_counter() - began
        loaded = float(self._value(session, _LOADED))
        if picture is not None:
            picture.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", session)["data"]))
        return Opened(page=page.name, bytes=page.stat().st_size, loaded_ms=loaded, shown_ms=1000 * shown)

    def _value(self, session: str, expression: str) -> Any:
        found = self._ask("Runtime.evaluate", session, expression=expression)
        return found["result"].get("value")

    def _ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                read = os.read(self._read, 2**20)
                if not read:
                    raise ResurfaceError("the browser ended")
                self._rest += read
            first, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(first)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ResurfaceError(f"the browser: {method}: {answer['error'].get('message')}")
                found: dict[str, Any] = answer["result"]
                return found

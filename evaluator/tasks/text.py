"""Running text, for the perplexity probe: any UTF-8 file, or `gazetteer`, the bundled passages in nine languages."""

from __future__ import annotations

from pathlib import Path

from evaluator.core.errors import InputError
from evaluator.tasks.base import Argument, Task
from evaluator.tasks.gazetteer import LANGUAGES, gazetteer_passages

BUNDLED = "gazetteer"
_BUNDLED_START = 1_000_000  # far behind the passages that calibrate pruning
_BUNDLED_PASSAGES = 40  # of each language


def read_text(path: Path) -> str:
    """The whole text. Raises InputError for a file that cannot be read, is not UTF-8, or is blank."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}: {error.reason})") from error
    if not text.strip():
        raise InputError(f"{path}: holds no text")
    return text


def bundled_text() -> str:
    """Passages that no calibration sees, one per line, one language after the other."""
    return "\n".join(
        passage
        for language in LANGUAGES
        for passage in gazetteer_passages(language, start=_BUNDLED_START, count=_BUNDLED_PASSAGES)
    )


def _text(path: Path | None) -> str:
    assert path is not None, "the argument is required"
    return bundled_text() if path == Path(BUNDLED) else read_text(path)


TASK = Task(
    name="text",
    help="running text, for the perplexity probe",
    argument=Argument("FILE", required=True, words={BUNDLED: f"{BUNDLED}-text"}),
    named_after="file",
    read_text=_text,
)

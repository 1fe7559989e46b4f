"""The command line in this process, as if it were typed."""

import pytest

from launch.commands.cli import main


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `resurface ARGUMENTS`."""
    monkeypatch.setattr("sys.argv", ["resurface", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)

"""The house rules that a linter does not know: sizes, who imports vLLM and Ray, and
no drawers for leftovers."""

import ast
import io
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("evaluator", "pruning", "quantising", "launch", "resurface")
SOURCES = sorted(
    path
    for package in (*PACKAGES, "benchmarks")
    for path in (ROOT / package).rglob("*.py")
)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


IGNORED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _token_lines(text: str) -> list[int]:
    """The line of each token of Python's tokenizer, without comments, docstrings,
    line ends and indentation."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, SCOPES) and ast.get_docstring(node) is not None:
            docstrings.update(
                range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
            )
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [
        token.start[0]
        for token in tokens
        if token.type not in IGNORED and token.start[0] not in docstrings
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    """In tokens: a limit on lines rewards dense lines."""
    text = path.read_text(encoding="utf-8")
    lines = _token_lines(text)
    assert len(lines) <= (1_100 if path.name == "cli.py" else 4_500)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = sum(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
            assert size <= 850, f"{node.name} at line {node.lineno}"


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks"])
def test_few_loose_files(package: str) -> None:
    loose = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    assert len(loose) <= (5 if package == "benchmarks" else 4), loose


def test_code_size() -> None:
    """Small limits on files and functions alone would encourage many small files."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    lines = [line for text in texts for line in text.splitlines()]
    tokens = sum(len(_token_lines(text)) for text in texts)
    assert tokens <= 374_400
    assert tokens / len(lines) <= 6.2
    assert sum(len(line) > 100 for line in lines) / len(lines) <= 0.004
    assert len(SOURCES) <= 329
    assert tokens / len(SOURCES) >= 1_030


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_takes_eight_arguments(path: Path) -> None:
    """But for the functions that typer makes commands of: their parameters are the
    command's options."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            named = [each for each in arguments if each.arg not in ("self", "cls")]
            command = (
                path.parent == ROOT / "launch" / "commands"
                and "typer." in ast.unparse(node.args)
            )
            assert len(named) < 8 or command, f"{node.name} at line {node.lineno}"


def test_vllm_and_ray_stay_in_rooms() -> None:
    """Only the engine's folder imports vLLM, and only `launch/run/work` imports Ray."""
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for name in _imports(path)
        if name.split(".")[0] == "vllm"
    }
    product = {path for path in importers if path.split("/")[0] in PACKAGES}
    assert all(path.startswith("evaluator/engine/") for path in product), product
    for path in SOURCES:
        inside = path.relative_to(ROOT).parts[:3] == ("launch", "run", "work")
        assert inside or "ray" not in {name.split(".")[0] for name in _imports(path)}


def test_settable_clock_decides_nothing() -> None:
    """Who writes a run, what hangs and what is due follow from counts and the
    monotonic clock. Exceptions: `status` answers at once where a sign of life looks
    new, vLLM wants the time of arrival, cards, files and events tell it. A run's
    first call fixes the date in its prompts."""
    settable = {
        f"time.{name}"
        for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime")
    }
    settable |= {
        f"{kind}.{name}"
        for kind in ("datetime", "date")
        for name in ("now", "utcnow", "today")
    }
    users = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "time"), (
                f"{path}: import time itself"
            )
            if isinstance(node, ast.Attribute) and ast.unparse(node) in settable:
                users.add(path.relative_to(ROOT).as_posix())
    assert {path for path in users if path.split("/")[0] in PACKAGES} == {
        "evaluator/engine/vllm/requests.py",
        "launch/run/directory/event_log.py",
        "launch/status.py",
        "launch/sweep/prepared_tasks.py",
    }


def test_the_wheel_contains_the_product_only() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "tool"
    ]["setuptools"]
    shipped = setuptools.find_packages(
        str(ROOT), include=settings["packages"]["find"]["include"]
    )
    assert {name.split(".")[0] for name in shipped} == set(PACKAGES)


def test_modules_have_names_and_docstrings() -> None:
    """And the map fits a page."""
    assert not [
        path
        for path in SOURCES
        if path.stem in {"utils", "util", "common", "helpers", "misc"}
    ]
    assert not [
        path
        for path in SOURCES
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").count("\n") <= 100


def test_no_test_module_imports_another() -> None:
    """What tests share lies in tests/support."""
    tests = [
        path for path in (ROOT / "tests").rglob("*.py") if path.parts[-2] != "support"
    ]
    named = {_module(path) for path in tests if path.name.startswith("test_")}
    importers = {
        path.relative_to(ROOT).as_posix(): name
        for path in tests
        for name in _imports(path)
        if name in named or name.rsplit(".", 1)[0] in named
    }
    assert not importers


def test_imports_have_no_cycles() -> None:
    modules = {_module(path): path for path in SOURCES}
    graph = {
        name: {m for m in _every_import(path) if m in modules and m != name}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


INNER = sorted(
    {path.parent for path in SOURCES if (path.parent / "__init__.py").exists()}
)


@pytest.mark.parametrize(
    "folder", INNER, ids=lambda folder: str(folder.relative_to(ROOT))
)
def test_few_imports_between_siblings(folder: Path) -> None:
    """An arrow: one child (a module, or a package with all of its modules) imports
    another."""
    package, arrows = ".".join(folder.relative_to(ROOT).parts) + ".", set()
    for path in folder.rglob("*.py"):
        child = (_module(path) + ".").removeprefix(package).split(".")[0]
        targets = {
            name.removeprefix(package).split(".")[0]
            for name in _every_import(path)
            if name.startswith(package)
        }
        arrows |= {(child, target) for target in targets - {child} if child}
    assert len(arrows) <= (35 if package == "evaluator." else 45), sorted(arrows)


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _every_import(path: Path) -> Iterator[str]:
    """Imports anywhere in a module, also within functions and for type checking; a
    submodule counts as itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = {
                n for n in names if (ROOT / (n.replace(".", "/") + ".py")).exists()
            }
            yield from submodules
            if len(submodules) < len(names):
                yield node.module


def test_nothing_is_unpickled() -> None:
    """A pickle runs code when it is read."""
    readers = {
        "pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "joblib",
        "shelve",
        "marshal",
    }
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for name in _imports(path)
        if name.split(".")[0] in readers
    }
    assert importers == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_call_runs_read_code(path: Path) -> None:
    """torch.load with anything but weights, numpy's pickles, YAML with tags, and
    evaluation of text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        place = f"{called} at line {node.lineno}"
        assert called != "torch.load" or given.get("weights_only") == "True", place
        assert given.get("allow_pickle", "False") == "False", place
        assert called != "yaml.load" or ast.unparse(node.args[1]).endswith(
            "SafeLoader"
        ), place
        assert called not in (
            "eval",
            "exec",
            "yaml.unsafe_load",
            "yaml.full_load",
            "pd.read_pickle",
        ), place
        # where formulas become texts
        writes_csv = path == ROOT / "evaluator" / "core" / "files.py"
        assert not called.endswith(".to_csv") or writes_csv, place
        assert given.get("shell", "False") == "False", place
        assert given.get("trust_remote_code", "False") != "True", place

"""A registry with one more object, for one test."""

from collections.abc import Iterator
from contextlib import contextmanager

from evaluator.core.config import Registry, T


@contextmanager
def temporarily(registry: Registry[T], entry: T) -> Iterator[T]:
    registry.register(entry)
    try:
        yield entry
    finally:
        del registry._objects[entry.name]

"""Decides which engine may evaluate which checkpoint, if a base and its checkpoints need the same type of device.

GPUs of another type round differently, which alone can flip an item. With `same_device: true`, a base and its
compressed checkpoints form a family. The family is bound to the type of device that makes its first records. Before
that, it is bound to the type of the engines that work on it. No Ray; the board holds the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evaluator.core.errors import InputError


@dataclass(slots=True)
class Devices:
    """The engines with a process, their types of device, and the families that are bound to one type."""

    _engines: dict[int, str] = field(default_factory=dict)
    _families: dict[str, str] = field(default_factory=dict)  # by checkpoint
    _bound: dict[str, str] = field(default_factory=dict)  # the type of device, by family
    _recorded: set[str] = field(default_factory=set)  # families that have records, and so are bound for good
    _at: dict[int, str] = field(default_factory=dict)  # the family that an engine works on

    def join(self, engine: int, device: str) -> None:
        """An engine has a process."""
        self._engines[engine] = device

    def leave(self, engine: int) -> None:
        self._engines.pop(engine, None)

    def belong(self, checkpoint: str, family: str) -> None:
        self._families[checkpoint] = family

    def bind(self, checkpoint: str, device: str) -> None:
        """A checkpoint has records from a device. Raises InputError if its family has some from another type."""
        family = self._families.get(checkpoint)
        if family is None:
            return
        self._recorded.add(family)
        bound = self._bound.setdefault(family, device)
        if bound != device:
            raise InputError(
                f"resources.same_device: {family!r} and its compressed checkpoints have records of {bound!r} and, "
                f"{checkpoint!r}, of {device!r}; set it to false, or use a new --out"
            )

    def begin(self, engine: int, checkpoint: str) -> None:
        """An engine receives a checkpoint that it fits. A family without a type is now bound to the engine's."""
        if engine in self._engines and checkpoint in self._families:
            self._at[engine] = self._families[checkpoint]
            self._bound.setdefault(self._at[engine], self._engines[engine])

    def record(self, checkpoint: str) -> None:
        """There are records of a checkpoint now."""
        if checkpoint in self._families:
            self._recorded.add(self._families[checkpoint])

    def end(self, engine: int) -> None:
        """An engine has ended its work. If its family has no records, another type may now try."""
        family = self._at.pop(engine, None)
        if family is not None and family not in self._recorded and family not in self._at.values():
            self._bound.pop(family, None)

    def wanted(self, checkpoint: str) -> str | None:
        """The type of device that a checkpoint is bound to."""
        return self._bound.get(self._families.get(checkpoint, ""))

    def fits(self, engine: int, checkpoint: str) -> bool:
        """Whether an engine has the type of device that a checkpoint is bound to."""
        wanted = self.wanted(checkpoint)
        return wanted is None or self._engines.get(engine) == wanted

    def others(self, engine: int, checkpoint: str) -> set[int]:
        """The other engines that fit a checkpoint."""
        return {other for other in self._engines if other != engine and self.fits(other, checkpoint)}

    def lacks(self, checkpoint: str) -> bool:
        """Whether engines exist, but none fits a checkpoint."""
        return bool(self._engines) and not any(self.fits(engine, checkpoint) for engine in self._engines)

"""How many engines share a GPU, found by measurement, without Ray.

A small model's GPU waits for the Python of one engine. Another engine beside it can use
that time. Whether it gains depends on the GPU (with MPS, kernels of two processes run
at once; without, the processes take turns) and on the processor. So it is tried: an
engine works alone, then a second beside it, and so on. One that adds too little ends.
"""

from collections.abc import Callable, Sequence

from evaluator.core.errors import counted
from evaluator.core.records import EngineStats
from launch.provenance import Room

MOST = 4  # of `auto`
STEPS, SECONDS = 100, 10.0  # of each engine, in a measurement
BUSY = 0.70  # a GPU that works for so much of the time needs no other engine
GAIN = 1.15  # what another engine must add, to the rate of all before it
_STARTS = 10  # without MPS, a trial needs work for so many starts of an engine
_STARTS_MPS = 2
_LONG = 4096  # tokens of a request, from which an engine may need the whole cache
_FOR_ALL, _FOR_ONE = (
    4 << 30,
    6 << 30,
)  # bytes beside the weights, of a GPU and an engine
_CORES = 2  # physical ones of an engine


def most_engines(room: Room, weights: int, longest: int) -> tuple[int, str]:
    """How many engines a GPU has room for, and what limits them.

    `weights`: bytes of the largest checkpoint. `longest`: tokens of a request."""
    if longest > _LONG:
        return 1, f"requests of {longest:,} tokens need the whole cache"
    if room.memory is None:
        return 1, "the memory of the GPU is unknown"
    cores = f"{room.cores} physical cores for {counted(room.gpus, 'GPU')}"
    return min(
        (MOST, f"{MOST} is the most"),
        room_for(room.memory, weights),
        (max(1, room.cores // (_CORES * room.gpus)), cores),
    )


def room_for(memory: int, weights: int) -> tuple[int, str]:
    """How many engines the free bytes of a GPU hold, and why no more."""
    most = max(1, (memory - _FOR_ALL) // (weights + _FOR_ONE))
    free, taken = memory / 2**30, weights / 2**30
    return most, f"{free:.0f} GiB are free, the weights take {taken:.1f}"


class Trial:
    """Measures one GPU. The run gives all of its GPUs as many engines."""

    def __init__(self, most: int, limit: str, *, mps: bool = False) -> None:
        """`limit`: why there are no more than `most`."""
        self.engines = 1  # that a GPU is to have now
        self.most = most
        self.settled = most == 1
        self._limit, self._mps = limit, mps
        self._rate = 0.0  # of the engines before the newest
        self._since = 0.0
        self._before: tuple[EngineStats, ...] = ()  # empty: no measurement is running
        self._left = 0  # items, at its begin

    @classmethod
    def of(cls, engines: int) -> "Trial":
        """Without a measurement."""
        trial = cls(engines, "")
        trial.engines, trial.settled = engines, True
        return trial

    def look(
        self,
        now: float,
        stats: Sequence[EngineStats | None],
        items_left: Callable[[], int],
        start_seconds: float,
    ) -> str | None:
        """Take what the GPU's engines have counted; returns a decision, in words.

        `stats`: None of an engine that has not answered yet. `items_left`: counts the
        items of the run without records, only where a measurement begins or ends.
        `start_seconds`: of an engine."""
        counted = tuple(each for each in stats if each is not None)
        if self.settled or len(counted) != self.engines:
            self._before = ()
            return None
        steps = [
            after.steps - before.steps
            for after, before in zip(counted, self._before, strict=False)
        ]
        if not steps or min(steps) < 0:  # a checkpoint was loaded meanwhile
            self._since, self._before, self._left = now, counted, items_left()
            return None
        seconds = now - self._since
        if min(steps) < STEPS or seconds < SECONDS:
            return None
        work = sum(after.requests + after.generated_tokens for after in counted) - sum(
            before.requests + before.generated_tokens for before in self._before
        )
        busy = _busy(counted[0].since(self._before[0]))
        left = items_left()
        done = self._left - left
        seconds_left = left * seconds / done if done > 0 else 0.0
        self._before = ()
        return self.decide(work / seconds, busy, seconds_left, start_seconds)

    def refused(self, reason: str) -> str:
        """The newest engine did not start; returns the decision, in words."""
        return self._settle(
            max(1, self.engines - 1), f"another did not start: {reason}"
        )

    def decide(
        self, rate: float, busy: float | None, left: float, start_seconds: float
    ) -> str:
        """Settle on a number of engines, or try one more; returns it in words.

        `rate`: the work of all engines a second. `busy`: the share of the time in which
        the GPU works for the first; None: unknown. `left`: seconds of work."""
        count = self.engines
        if count == 1:
            found = "the GPU's time is not measured"
            if busy is not None:
                found = f"the GPU works {busy:.0%} of the time"
            if busy is None or busy >= BUSY:
                return self._settle(1, found)
        else:
            times = rate / self._rate if self._rate else 1.0
            found = f"{count} do {times:.2f} times the work of {count - 1}"
            if times < GAIN:
                return self._settle(count - 1, f"{found}, less than {GAIN}")
        self._rate = rate
        if count == self.most:
            return self._settle(count, f"{found}; {self._limit}")
        needed = (_STARTS_MPS if self._mps else _STARTS) * start_seconds
        if left < needed:
            return self._settle(
                count,
                f"{found}; only {left:.0f} s of work are left, less than {needed:.0f}",
            )
        self.engines = count + 1
        return (
            f"{found}: trying {count + 1} engines{'' if self._mps else ', without MPS'}"
        )

    def _settle(self, engines: int, why: str) -> str:
        self.engines, self.settled = engines, True
        return f"{engines} on each GPU: {why}"


def _busy(stats: EngineStats) -> float | None:
    """The share of an engine's time in which its GPU computed for it."""
    if not stats.busy_seconds or stats.waiting_seconds is None:
        return None
    return stats.busy_seconds / (stats.busy_seconds + stats.waiting_seconds)


def cores_of(
    place: int, places: int, cores: Sequence[frozenset[int]]
) -> frozenset[int]:
    """The logical processors of one of `places` engines of a node: as many physical
    cores as each other one has. `cores`: the logical processors of each physical core.
    Empty if there are too few."""
    share = len(cores) // places
    own = cores[place * share : (place + 1) * share]
    return frozenset().union(*own)

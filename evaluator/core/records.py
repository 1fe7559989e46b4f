"""The evaluator's input and output: items in, records out, both frozen.

An `Item` is one question. A `Record` is the outcome of one probe of one item on one
checkpoint. A `VerdictRow` is a matcher model's decision about a record's response.
Their fields are the columns of the run directory's Parquet files. Each field states its
meaning and unit here, once. `evaluator.store.schema` derives the Arrow schemas, the
report's columns and docs/records.md from them. A number that was not measured is None,
never a sentinel. `EngineStats` is what an engine counted meanwhile, for run.json.

Example (the beam probe's second beam of one item)::

    Record(checkpoint="wanda-0.5", weights_digest="9f3c...", base="dense", method="wanda", pattern="unstructured",
           sparsity=0.5, calibration="gazetteer", task="gazetteer", language="swahili", item_id="swahili-0017",
           format="open", probe="beam", index=1, seed=0, status="ok", text="Mto Kalo", token_ids=(88, 912, 2),
           logprob=-1.73, contains=True, exact_match=True, token_f1=1.0, prompt_tokens=143, truncated=False, ...)
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
from pydantic import Field

Format = Literal[
    "open", "shown", "distractors_only", "unrelated", "one_shot", "open_capped"
]
Status = Literal["ok", "truncated", "excluded", "engine_error"]
ThoughtState = Literal["none", "closed", "cut"]
Grading = Literal["strict", "paper"]  # the rule by which an answer is right

FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, slots=True)
class Meaning:
    """A stored field's description, beside its name and Python type."""

    text: str  # completes "<name>: ..."; Markdown
    unit: str = ""
    key: bool = False  # one of the columns that together name a record
    late: bool = False  # files of earlier versions lack it
    # False: kept for audits; neither the tables nor the page read it
    reported: bool = True
    # the Arrow type, where it is not that of the Python type (str, int32, float64,
    # bool)
    arrow: str = ""


_Unreported = partial(Meaning, reported=False)
TokenIds = tuple[int, ...]
Columns = dict[str, Any]  # values of a record, by column
PerToken = tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question, with everything needed to pose and to grade it."""

    task: Annotated[str, Meaning("the task's name")]
    language: Annotated[
        str, Meaning("as the task spells it; `text` for a task of text")
    ]
    item_id: Annotated[
        str, Meaning("unique within its task; never changes between versions")
    ]
    context: Annotated[str, Meaning("the passage that the question is about")]
    question: Annotated[str, Meaning("the question")]
    answers: Annotated[
        tuple[str, ...], Meaning("each counts as right; the first is the gold option")
    ]
    cluster: Annotated[
        str, Meaning("intervals resample it as one; default: the items of one context")
    ]
    # in memory: the task's own wrong options; in files: all, with the gold answer
    options: Annotated[
        tuple[str, ...],
        Meaning("the options of `choice` in order, with the gold answer"),
    ] = ()
    digest: Annotated[
        str | None,
        Meaning(
            "SHA-256 over context, question, gold answers and the task's own options"
        ),
    ] = None
    groups: Annotated[
        tuple[str, ...] | None,
        Meaning("the user's groups that it belongs to: `team=billing`", late=True),
    ] = None

    def posed(self, listed: tuple[str, ...]) -> "Item":
        """As graders see it: with the options that its prompt lists; of none, with its
        own wrong ones, whose order the model has not seen."""
        golds = {answer.strip() for answer in self.answers}
        wrong = tuple(each for each in self.options if each.strip() not in golds)
        return replace(self, options=listed or wrong)


def is_group(cut: str) -> bool:
    """Whether the name of a row is a group's (`team=billing`), and no language's."""
    return "=" in cut


def groups_of(named: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The groups of fields and their values: each once, and in one line."""
    return tuple({f"{name}={' '.join(text.split())}": None for name, text in named})


# msgspec makes a record in a fifth of a dataclass's time
class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoint a record is of, and how that was compressed: its first
    columns."""

    checkpoint: Annotated[str, Meaning("the checkpoint's name in this run", key=True)]
    weights_digest: Annotated[
        str,
        Meaning("SHA-256 over name, dtype, shape and bytes of every tensor", key=True),
    ]
    base: Annotated[
        str | None,
        Meaning("the dense checkpoint that it is compared with; null for a dense one"),
    ]
    method: Annotated[
        str | None,
        Meaning(
            "how it was compressed: `wanda`, `gptq`, `wanda + gptq`,"
            " `quantised` (unknown); null for a dense one"
        ),
    ]
    pattern: Annotated[
        str | None,
        Meaning(
            "zeros (`unstructured`, `2:4`), removed parts (`layers`,"
            " `experts`, `20-25,28`), scheme (`W4A16 (gptq, group 128)`), or both"
            " (`2:4 + FP8 (per channel)`); null for a dense one"
        ),
    ]
    sparsity: Annotated[
        float | None,
        Meaning(
            "achieved share: zeros in the pruned matrices, or removed weights of the"
            " layers",
            "0 to 1",
        ),
    ]
    calibration: Annotated[
        str | None, Meaning("source of the calibration text, if known")
    ]
    requested_sparsity: Annotated[
        float | None,
        Meaning("the share in the setting; N / M for a pattern N:M", "0 to 1"),
    ] = None
    kv_cache: Annotated[
        str | None, Meaning("dtype of cached keys and values; `auto`: the engine's")
    ] = None
    architecture: Annotated[
        str | None, Meaning("digest of config.json and the tensors' shapes")
    ] = None


class Record(Origin, frozen=True, kw_only=True):
    """The outcome of one probe of one item on one checkpoint: one row of a Parquet
    part."""

    task: Annotated[str, Meaning("the task's name", key=True)]
    language: Annotated[
        str, Meaning("as the task spells it; `text` for a task of text", key=True)
    ]
    item_id: Annotated[
        str,
        Meaning(
            "unique within its task; `window-000017` for a window of a task of text",
            key=True,
        ),
    ]
    format: Annotated[Format, Meaning("the form of the question", key=True)]
    probe: Annotated[str, Meaning("such as `greedy` or `choice`", key=True)]
    index: Annotated[
        int,
        Meaning(
            "number of the beam, sample, option or window, from 0. `fidelity`: 0 is"
            " the base's greedy answer, 1 the gold answer. Else 0",
            key=True,
        ),
    ]
    seed: Annotated[
        int, Meaning("the run's seed; `sample`: the sample's", key=True, arrow="int64")
    ]
    status: Annotated[
        Status,
        Meaning(
            "`ok`; `truncated`: `ok` with a cut context or thought; `excluded`: the"
            " item cannot be posed so; `engine_error`: the engine failed"
        ),
    ]
    text: Annotated[
        str | None,
        Meaning(
            "the response; `aligned_rank`: the lead-in, the base's words before its"
            " answer; `excluded` and `engine_error`: the reason"
        ),
    ] = None
    token_ids: Annotated[
        TokenIds | None,
        Meaning("generated tokens with EOS, or the scored text; null for running text"),
    ] = None
    logprob: Annotated[
        float | None,
        Meaning(
            "log-probability, summed over `token_ids` or a window. Perplexity is"
            " exp(-sum(logprob) / sum(prompt_tokens))",
            "nats",
        ),
    ] = None
    rank: Annotated[
        int | None,
        Meaning(
            "1 + the number of tokens likelier than the gold answer's first, after the"
            " open prompt; `aligned_rank`: after prompt and lead-in"
        ),
    ] = None
    margin: Annotated[
        float | None,
        Meaning(
            "log-probability of that first token minus the likeliest token's; <= 0",
            "nats",
        ),
    ] = None
    is_gold: Annotated[
        bool | None, Meaning("whether the option is the gold answer")
    ] = None
    option_text: Annotated[
        str | None,
        Meaning(
            "the scored option; `aligned_rank`: the aligned answer; of a response, what"
            " its grader read as the answer, a line each"
        ),
    ] = None
    contains: Annotated[
        bool | None,
        Meaning(
            "whether the response is right: contains a gold answer by the strict rule,"
            " without `grading` the paper's; or as its task's other `grader` says"
        ),
    ] = None
    exact_match: Annotated[
        bool | None,
        Meaning("whether its text is a gold answer's by that rule, with any grader"),
    ] = None
    token_f1: Annotated[
        float | None,
        Meaning(
            "token F1 of the texts of response and gold answer by that rule, with any"
            " grader; the best over the answers",
            "0 to 1",
        ),
    ] = None
    prompt_tokens: Annotated[
        int | None,
        Meaning(
            "length of the prompt; `aligned_rank`: with the lead-in; running text: the"
            " predicted tokens. Shorter for an option whose first token covers the"
            " prompt's end",
            "tokens",
        ),
    ] = None
    truncated: Annotated[bool | None, Meaning("whether the context was cut to fit")] = (
        None
    )
    engine: Annotated[str, Meaning("the engine's name")]
    engine_version: Annotated[str, Meaning("the version of its library")]
    dtype: Annotated[str, Meaning("the engine's number format")]
    kld: Annotated[
        PerToken,
        Meaning(
            "KL divergence, sum P (ln P - ln Q): P is the base's distribution over the"
            " next token, Q the checkpoint's. Only `fidelity` and `text_fidelity` fill"
            " this and the columns up to `base_confidence`, by token",
            "nats",
        ),
    ] = None
    kld_reverse: Annotated[PerToken, Meaning("sum Q (ln Q - ln P)", "nats")] = None
    acceptance: Annotated[
        PerToken, Meaning("expected acceptance rate (EAR), sum min(P, Q)", "0 to 1")
    ] = None
    same_top: Annotated[
        tuple[bool, ...] | None, Meaning("whether both have the same likeliest token")
    ] = None
    top_agreement: Annotated[
        PerToken, Meaning("share of the first 5 ranks with the same token", "0 to 1")
    ] = None
    token_logprobs: Annotated[PerToken, Meaning("ln Q of the token", "nats")] = None
    base_token_logprobs: Annotated[PerToken, Meaning("ln P of the token", "nats")] = (
        None
    )
    base_confidence: Annotated[PerToken, Meaning("the highest P", "0 to 1")] = None
    context_tokens: Annotated[
        int | None, Meaning("wanted length of a context with other passages", "tokens")
    ] = None
    context_depth: Annotated[
        float | None,
        Meaning("share of the added text before the own passage", "0 to 1"),
    ] = None
    thought: Annotated[
        str | None,
        Meaning("what the model thought before its answer (`greedy`, `sample`)"),
    ] = None
    thought_tokens: Annotated[
        int | None, Meaning("length of the thought", "tokens")
    ] = None
    thought_state: Annotated[
        ThoughtState | None,
        Meaning(
            "`none`: no thought; `closed`: it has an end; `cut`: no end, so no answer"
        ),
    ] = None
    contains_paper: Annotated[
        bool | None, Meaning("`contains` by the paper's rule")
    ] = None
    grading: Annotated[Grading | None, Meaning("the rule of tables and gate")] = None
    thought_ids: Annotated[TokenIds | None, _Unreported("ids of `thought`")] = None
    prompt_digest: Annotated[
        str | None, Meaning("digest of the prompt's token ids")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """A matcher model's decision about one record's response; on disk it follows the
    record's key."""

    matcher: Annotated[str, Meaning("the matcher's name")]
    matcher_digest: Annotated[str, _Unreported("as `weights_digest`")]
    verdict: Annotated[
        bool | None, Meaning("whether the response means the same as a gold answer")
    ]
    status: Annotated[
        Status,
        Meaning(
            "`ok`; `truncated`: the response was cut to fit the prompt; `excluded`:"
            " the prompt is too long even without it; `engine_error`: the engine failed"
        ),
    ]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a table, or why it is missing."""

    table: Annotated[str, Meaning("the name of its CSV")]
    task: Annotated[str | None, Meaning("as in records")]
    checkpoint: Annotated[str, Meaning("as in records")]
    base: Annotated[str | None, Meaning("as in records")]
    format: Annotated[str | None, Meaning("as in records")]
    probe: Annotated[str | None, Meaning("as in records")]
    group: Annotated[str | None, Meaning("its other columns of text: `mc_only, own`")]
    language: Annotated[
        str | None,
        Meaning("or a group (`team=billing`); `all`: pooled; `mean`: over languages"),
    ]
    measure: Annotated[str, Meaning("its column in the CSV")]
    value: Annotated[float | None, Meaning("a share is a fraction of 1")]
    low: Annotated[float | None, Meaning("95 % interval")]
    high: Annotated[float | None, Meaning("the same")]
    n: Annotated[int | None, Meaning("number of items", arrow="int64")]
    p: Annotated[float | None, Meaning("p-value, not corrected for many tests")]
    reason: Annotated[str | None, Meaning("why it or its interval is missing; notes")]


# A checkpoint's own columns, equal in all its records; PRUNING are the ones about its
# compression.
METADATA = tuple(name for name in Origin.__struct_fields__ if name != "checkpoint")
CONTEXT = ("context_tokens", "context_depth")
# equal ones make a checkpoint a re-run of its base
IDENTITY = ("weights_digest", "architecture", "kv_cache")
SERVING = ("engine", "engine_version", "dtype")  # how a record was computed
PRUNING = tuple(name for name in METADATA if name not in ("base", *IDENTITY))


# of a file that may be anybody's
Amount = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters of one engine since its last load.

    Seconds are wall time between the first request and the last response of each `run`.
    In `busy_seconds` the engine's device computed: the processor in each step, or a GPU
    as its own clock tells. In `waiting_seconds` the engine held requests and computed
    nothing: its driver, its scheduler or its launches kept it waiting. In
    `idle_seconds` it held no request. None: the engine does not measure them.
    `peak_memory`: bytes since the process began, summed over the engine's workers: of a
    GPU torch's reserved memory, on a CPU the process's resident memory.
    """

    requests: Amount = 0
    steps: Amount = 0
    prompt_tokens: Amount = 0  # prompt tokens computed, the cached ones not counted
    generated_tokens: Amount = 0
    cached_tokens: Amount = 0
    busy_seconds: Seconds | None = None
    waiting_seconds: Seconds | None = None
    idle_seconds: Seconds | None = None
    peak_memory: Amount | None = None
    replaced: Amount = 0  # texts of an API with the character for half a one
    repeated: Amount = 0  # fixed prompts that were requested again
    changed: Amount = 0  # of those with another answer

    @property
    def remarks(self) -> dict[str, str]:
        """Notes by what is counted: answers that may be wrong."""
        notes = {}
        if self.replaced:
            notes["replaced"] = (
                f"{self.replaced} of its answers have U+FFFD, the replacement"
                " character: the server cut characters, which may make them wrong"
            )
        if self.changed:
            notes["changed"] = (
                f"{self.changed} of {self.repeated} fixed prompts had another answer"
                " when repeated: another model answers a part, or the server's numbers"
                " change; a control tells how much"
            )
        return notes

    def plus(self, other: "EngineStats") -> Self:
        """Both together: sums, and the higher peak. None only if neither measured
        it."""
        sums: dict[str, Any] = {}
        for name in EngineStats.__slots__:
            own, value = getattr(self, name), getattr(other, name)
            if own is None or value is None:
                sums[name] = value if own is None else own
            else:
                sums[name] = max(own, value) if name == "peak_memory" else own + value
        return replace(self, **sums)

    def since(self, earlier: "EngineStats") -> Self:
        """What was counted after `earlier`, of the same load."""
        counts: dict[str, Any] = {}
        for name in EngineStats.__slots__:
            value = getattr(self, name)
            if value is not None and name != "peak_memory":
                counts[name] = value - (getattr(earlier, name) or 0)
        return replace(self, **counts)

    def shares(self) -> dict[str, float | None]:
        """`idle_share`, `waiting_share`: their shares of the time, from 0 to 1; None
        if the engine does not measure."""
        if (
            self.waiting_seconds is None
            or self.idle_seconds is None
            or not self.busy_seconds
        ):
            return {"idle_share": None, "waiting_share": None}
        whole = self.busy_seconds + self.waiting_seconds + self.idle_seconds
        return {
            "idle_share": self.idle_seconds / whole,
            "waiting_share": self.waiting_seconds / whole,
        }

"""What one evaluation asks: which items, posed how, and how their answers are looked
for."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from evaluator.asking.prompts import CAPPED_FORMATS
from evaluator.asking.templates import PromptTemplate, lists_options
from evaluator.probes.base import PROBES, ItemProbe, Probe, TextProbe
from evaluator.probes.item import Settings, each_once
from evaluator.tasks import TASKS, Source, Task
from evaluator.tasks.distractors import DrawnOptions

# settings without which records differ in cut answers alone
RECHECK = ("recheck_cut", "recheck_limit")
# settings that a text has no use for
_OF_QUESTIONS = "items", "formats", "options", "chat", "few_shot", "system", "grader"
SHORTEST_PROMPT = 32  # tokens: a cap below it would leave every item out


class EvalConfig(Settings, Source):
    """Which items are asked, how they are posed, and how their answers are looked for
    (defaults: the paper's).

    The keys of a `Source` say more of a data set: they are for the tasks that read any
    (`hf:...` and the presets).
    """

    task: str  # TASK[:PATH]
    # What records call it; None: the task's own name, a file's stem for jsonl:FILE and
    # text:FILE.
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    languages: tuple[str, ...] | None = Field(
        default=None, description="names or codes; all by default"
    )
    items: int = Field(default=200, ge=0, description="per language; 0 = all")
    probes: tuple[Annotated[str, AfterValidator(PROBES.checked)], ...] = Field(
        default=("greedy", "beam", "sample", "choice", "rank", "aligned_rank"),
        description="see `list probes`",
    )
    # How distractors are drawn for items without their own options. None: the run's
    # first setting, or `alike`.
    options: DrawnOptions | None = Field(
        default=None, description="distractors: alike (default), any or near"
    )
    chat: bool = Field(default=False, description="use the tokenizer's chat template")
    # As this suite poses it (`Task.suites`).
    suite: str | None = Field(
        default=None, description="zero-shot[:DIR], in place of a task"
    )
    # Which of the sweep's prompts pose it; None: the paper's and every other one.
    prompts: tuple[str, ...] | None = None
    # the prompt that poses it, if not the paper's; `prompts` sets it
    template: PromptTemplate | None = None
    few_shot: int = Field(
        default=0, ge=0, le=64, description="solved examples before each prompt"
    )
    system: str | None = Field(
        default=None, description="the chat template's system message"
    )
    # cap of a prompt; the context is cut to fit
    prompt_tokens: int = Field(
        default=512, ge=SHORTEST_PROMPT, description="the longest prompt"
    )
    one_shot_prompt_tokens: int = Field(default=1024, ge=SHORTEST_PROMPT)

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """A preset has settings of its own; what is made for its grader goes with
        it."""
        if not isinstance(given, dict) or not isinstance(given.get("task"), str):
            return given
        task, suite = _task_of(given["task"]), given.get("suite")
        usual = dict(task.settings) if task else {}
        if suite is not None:
            known = [each.name for each in TASKS if suite in each.suites]
            if task is None or task.name not in known:
                has = ", ".join(known) or "nothing"
                raise ValueError(
                    f"suite: {suite!r} has {has}, not task {given['task']!r}"
                )
            usual |= task.suites[suite]
            usual.pop("prompt", None)
        if given.get("grader", usual.get("grader")) != usual.get("grader"):
            usual.pop("options", None)
        return {**usual, **given}

    @field_validator("probes", "prompts")
    @classmethod
    def _each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        each_once(value)
        return value

    @model_validator(mode="after")
    def _probes_fit(self) -> "EvalConfig":
        """A text has no questions, and questions have no windows. A thought begins in
        a chat template. Distributions are compared along answers without one."""
        for probe in (PROBES[name] for name in self.probes):
            if self.is_text and probe.reads != "text":
                able = [each.name for each in PROBES if each.reads == "text"]
                raise ValueError(
                    f"task {self.task!r} takes the probe {' or '.join(able)} and no"
                    f" other: {', '.join(self.probes)}"
                )
            if not self.is_text and probe.reads == "text":
                texts = [task.spellings[0] for task in TASKS if task.kind == "text"]
                raise ValueError(
                    f"probe {probe.name} takes a text, as in task"
                    f" {' or '.join(texts)}, not {self.task!r}"
                )
            if probe.references and self.thinks:
                raise ValueError(
                    f"thinking: the probe {probe.name} needs answers without thoughts;"
                    " use thinking: off"
                )
            if probe.after_base and not self.is_text and "greedy" not in self.probes:
                raise ValueError(
                    f"probe {probe.name} reads the base's greedy answers: it needs the"
                    " probe greedy too"
                )
        if self.options == "near" and self.grader != "number":
            raise ValueError(
                f"options: near: makes numbers, and the grader is {self.grader}: use"
                " grader: number"
            )
        if self.seeds is not None and not self.draws:
            drawing = [each.name for each in PROBES if each.drawn]
            raise ValueError(
                f"seeds: {', '.join(map(str, self.seeds))}: no probe here draws answers:"
                f" add {' or '.join(drawing)} to probes"
            )
        if self.system and not self.chat:
            raise ValueError(
                "system: a chat template has system messages: set chat: true (--chat)"
            )
        if self.blank and (self.chat or self.few_shot):
            raise ValueError(
                f"task {self.task}: options in a question's blank go without chat and"
                " few_shot"
            )
        if self.thinks and not self.chat:
            raise ValueError(
                "thinking: thoughts begin in the chat template: set chat: true (--chat)"
            )
        return self

    @model_validator(mode="after")
    def _task_fits(self) -> "EvalConfig":
        """`data` describes exactly one data set. A data set of endings has no answers
        to write. Only whole contexts of items can be lengthened."""
        task = self._task
        if task and task.data is None and self.given():
            remedy = "did you mean languages?" if "language" in self.given() else ""
            if task.name == "jsonl":
                remedy = "each line of its file has language and groups"
            raise ValueError(
                f"{', '.join(self.given())}: task {self.task!r} is no data set of which"
                f" that can be said{remedy and f': {remedy}'}"
            )
        choosing = []
        for probe in PROBES:
            if isinstance(probe, ItemProbe):
                choosing += [probe.name] if probe.options is not None else []
        other = [name for name in self.probes if name not in choosing]
        if task and task.choice_only and other:
            raise ValueError(
                f"task {self.task!r} takes the probes {' and '.join(choosing)} only,"
                f" not {', '.join(other)}: {task.open}"
            )
        unread = [name for name in _OF_QUESTIONS if name in self.model_fields_set]
        if self.is_text and unread and self.suite is None:  # else for all its tasks
            raise ValueError(f"{', '.join(unread)}: task {self.task!r} is a whole text")
        capped = [form for form in self.formats if form in CAPPED_FORMATS]
        if any(self.context_tokens) and (self.is_text or capped):
            raise ValueError(
                f"context_tokens: {max(self.context_tokens)}: only the contexts of"
                f" questions can be longer, and not where formats cut them: {capped}"
            )
        return self

    @property
    def data_settings(self) -> Source | None:
        return Source.model_validate(self.given()) if self.given() else None

    def identifying(self) -> dict[str, Any]:
        """The settings that records depend on, as JSON, beside the task's data."""
        omitted = {"task", "prompts", *Source.model_fields} - self.given().keys()
        omitted.add("groups")  # they cut what is asked
        for name, default in if_omitted().items():
            if getattr(self, name) == default:
                omitted.add(name)
        return self.model_dump(mode="json", exclude=omitted)

    @property
    def draws(self) -> bool:
        """Whether a probe draws its answers."""
        return any(probe.drawn for probe in self.chosen)

    @property
    def is_text(self) -> bool:
        """Whether the task is running text, which is asked window by window."""
        return self._task is not None and self._task.kind == "text"

    @property
    def _task(self) -> Task | None:
        """None: no such task, which the reader of its data reports."""
        return _task_of(self.task)

    @property
    def usual_template(self) -> PromptTemplate | None:
        """What poses the task if no other prompt does; None: the paper's wording."""
        if self._task is None:
            return None
        text, name = self._task.prompt, self.suite or self._task.name
        if self.suite is not None:
            text = self._task.suites[self.suite].get("prompt", text)
        return PromptTemplate(name=name, text=text) if text else None

    @property
    def chosen(self) -> tuple[Probe, ...]:
        """The probes, in the order of their registry."""
        return tuple(probe for probe in PROBES if probe.name in self.probes)

    @property
    def item_probes(self) -> tuple[ItemProbe, ...]:
        return tuple(probe for probe in self.chosen if isinstance(probe, ItemProbe))

    @property
    def after_base(self) -> bool:
        """Whether a probe reads the base's answers or distributions, so that the
        base runs first."""
        return any(probe.after_base for probe in self.chosen)

    @property
    def references(self) -> bool:
        """Whether a probe compares distributions, which the base then keeps."""
        return any(probe.references for probe in self.chosen)

    @property
    def text_probes(self) -> tuple[TextProbe, ...]:
        return tuple(probe for probe in self.chosen if isinstance(probe, TextProbe))

    @property
    def lists_options(self) -> bool:
        """Whether the template lists options in every format."""
        return self.template is not None and lists_options(self.template.text)

    @property
    def draws_options(self) -> bool:
        """Whether a probe, a format or the template needs drawn options."""
        listing = not {"shown", "distractors_only"}.isdisjoint(self.formats)
        return (
            listing
            or self.lists_options
            or any(probe.options == "drawn" for probe in self.item_probes)
        )


def _task_of(spec: str) -> Task | None:
    name = spec.partition(":")[0]
    return next((task for task in TASKS if task.name == name), None)


def if_omitted() -> dict[str, Any]:
    """What settings are that `identifying` omits: they are younger than many runs."""
    names = ("grader", "few_shot", "system", "suite", *RECHECK)
    return {name: EvalConfig.model_fields[name].default for name in names}

"""Thoughts before answers, on a random language model of letters, against loops that
are written out."""

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from evaluator.asking.prompts import Prompter
from evaluator.asking.thoughts import Thoughts
from evaluator.core.errors import InputError
from evaluator.core.grading import grade
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import BaseAnswer
from evaluator.probes.planning import tokenised
from evaluator.probes.stream import Evaluation
from tests.support.fake import FakeEngine, FakeLM
from tests.support.letters import letter_items, letter_questions
from tests.support.stamps import STAMP

_TURN = "{% for each in messages %}<s>{{ each.content }}</s>{% endfor %}"
OFF = (
    "{% if enable_thinking is defined and not enable_thinking"
    " %}<think>\n\n</think>\n\n{% endif %}"
)
QWEN, OPENED = _TURN + OFF, _TURN + "{% if thinking %}<think>{% endif %}{# </think> #}"
CHARACTERS = "\nabcdefghijkl :CQAw.?mnopqrstuvxyz"
SPECIAL = ("<s>", "</s>", "<think>", "</think>")


def tokenizer_of(template):
    """A letter is a token."""
    words = {
        word: number
        for number, word in enumerate([*SPECIAL, *dict.fromkeys(CHARACTERS)])
    }
    made = Tokenizer(WordLevel(words, unk_token="\n"))
    made.pre_tokenizer, made.decoder = Split(Regex(r"[\s\S]"), "isolated"), Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", chat_template=template
    )
    tokenizer.add_tokens(list(SPECIAL[2:]))
    return tokenizer


def config_of(**settings):
    usual = {
        "task": "toy",
        "items": 0,
        "chat": True,
        "thinking": {"budget": 20},
        "max_new_tokens": 4,
        "samples": 3,
    }
    return EvalConfig(**usual | settings).model_copy(update={"thought_limit": 20})


class Run:
    """A run on one language model; `free` is what the model writes by itself."""

    def __init__(self, template, *, seed=5, config=None, base=None):
        self.tokenizer = tokenizer_of(template)
        self.config = config or config_of()
        caps = {"prompt_tokens": 512, "one_shot_prompt_tokens": 512}
        self.prompter = Prompter(
            self.tokenizer, chat=True, thinking=self.config.thinks, **caps
        )
        [self.eos] = self.prompter.eos_ids
        self.lm = FakeLM(vocabulary=len(self.tokenizer), eos_ids={self.eos}, seed=seed)
        questions = letter_questions(letter_items(12), self.config)
        plans = [tokenised(each, self.prompter, self.config) for each in questions]
        self.plans = {plan.item.item_id: plan for plan in plans}
        stream = Evaluation.of(
            iter(plans),
            config=self.config,
            prompter=self.prompter,
            columns=STAMP,
            base=base and base.answer,
        )
        self.asked = []
        engine = FakeEngine(self._answered, reorder_seed=seed, room=9)
        self.records = [record for _, found in stream.run(engine) for record in found]

    def _answered(self, request):
        self.asked.append(request)
        return self.lm.answer(request)

    def of(self, probe, item_id=None):
        return [
            each
            for each in self.records
            if each.probe == probe and item_id in (None, each.item_id)
        ]

    def answer(self, item):
        last = self.of("greedy", item.item_id)[-1]
        thought = None
        if last.thought_ids is not None:
            thought = self.thought(item.item_id)[0]
        return BaseAnswer(token_ids=last.token_ids, thought=thought)

    def free(self, ids, limit, stop):
        made = ()
        while len(made) < limit and not (made and made[-1] in stop):
            made += (int(self.lm.logprobs(ids + made).argmax()),)
        return made

    def thought(self, item_id):
        """The thought by a plain loop, and the ids that an answer follows."""
        prompt = self.plans[item_id].prompts["open"]
        thoughts = self.prompter.thoughts
        ids = self.free(prompt.token_ids, 20, {self.eos, thoughts.end_id})
        thought = thoughts.read(prompt.text, ids, {self.eos}, self.prompter.decode)
        if thought is None:
            return None, prompt.token_ids
        return thought, (*prompt.token_ids, *thought.token_ids, thoughts.end_id)


@pytest.fixture(scope="module", params=[QWEN, OPENED], ids=["qwen", "opened"])
def run(request):
    return Run(request.param)


def test_thinking_greedy_equals_free_loop(run):
    """Greedy answers are those of a loop that runs freely; a cut thought has none."""
    states = set()
    for item_id, plan in run.plans.items():
        [said], (thought, after) = run.of("greedy", item_id), run.thought(item_id)
        states.add(said.thought_state)
        assert said.prompt_tokens == len(plan.prompts["open"].token_ids)
        if thought is None:
            told = said.thought_state, said.thought_tokens, said.thought
            assert told == ("none", 0, None)
        else:
            assert said.thought_state == thought.state
            assert said.thought_ids == thought.token_ids
            assert said.thought_tokens == len(thought.token_ids)
            assert not said.thought.startswith("<think>")
            assert "</think>" not in said.thought
        if said.thought_state == "cut":
            told = said.status, said.contains, said.text, said.token_ids
            assert told == ("truncated", False, "", ())
            continue
        assert said.token_ids == run.free(after, 4, {run.eos})
        assert said.text == run.prompter.decode(said.token_ids)
        graded = grade(said.text, plan.item.answers, "english")
        assert said.contains == graded["contains"]
    assert states & {"none", "cut"}
    assert "closed" in states


def test_scores_follow_thought_and_gap(run):
    """Scores and ranks come after the thought and its gap."""
    gap = tuple(run.tokenizer.encode("\n\n", add_special_tokens=False))
    for item_id, plan in run.plans.items():
        thought, after = run.thought(item_id)
        before = after if thought is None else after + gap
        [ranked] = run.of("rank", item_id)
        [gold] = [each for each in run.of("choice", item_id) if each.is_gold]
        ids = tuple(
            run.tokenizer.encode(plan.item.answers[0], add_special_tokens=False)
        )
        row = run.lm.logprobs(before)
        assert ranked.rank == 1 + int((row > row[ids[0]]).sum())
        own = sum(
            float(run.lm.logprobs(before + ids[:number])[token])
            for number, token in enumerate(ids)
        )
        assert gold.logprob == pytest.approx(own)
        assert gold.thought_tokens == (0 if thought is None else len(thought.token_ids))


def test_samples_draw_own_thoughts(run):
    """Samples draw their own thoughts and do not depend on the cut of the work."""
    states = [each.thought_state for each in run.of("sample")]
    assert len(states) == 36
    assert len(set(states)) > 1
    for record in run.of("sample"):
        assert (record.thought_ids is None) == (record.thought_state == "none")
        assert record.thought_state != "cut" or (record.text, record.contains) == (
            "",
            False,
        )
    again = Run(run.tokenizer.chat_template)
    assert sorted(again.records, key=repr) == sorted(run.records, key=repr)


@pytest.mark.parametrize("template", [QWEN, OPENED])
def test_aligned_rank_follows_bases_thought(template):
    base = Run(template)
    own = Run(template, seed=6, base=base)
    asked = {each.request_id: each for each in own.asked}
    found = 0
    for serial, item_id in enumerate(own.plans):
        request = asked.get(f"{serial}/base/aligned_rank/answer")
        if request is not None:
            _, after = base.thought(item_id)
            assert request.prompt_ids[: len(after)] == after
            found += 1
    [*ranked] = (each for each in own.of("aligned_rank") if each.status == "ok")
    assert len(ranked) == found


def test_formats_of_templates():
    named = {
        "qwen": "{% if enable_thinking %}</think>",
        "deepseek": "<｜Assistant｜></think>",
        "think": "</think>",
    }
    assert {
        name: Thoughts(tokenizer_of(template)).format.name
        for name, template in named.items()
    } == {name: name for name in named}
    with pytest.raises(InputError, match="no thoughts in a known format"):
        Thoughts(tokenizer_of("{{ messages }}"))
    with pytest.raises(
        InputError, match="is 7 tokens of its vocabulary instead of one"
    ):
        Thoughts(tokenizer_of("<|channel|>analysis"))


CHANNELS = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
GPT_OSS = _TURN + "<|start|>assistant{# <|channel|>analysis #}"


@pytest.mark.parametrize("template", [QWEN, GPT_OSS])
def test_missing_thought_by_format(template):
    """An answer without a thought begins with the format's words."""
    tokenizer = tokenizer_of(template)
    tokenizer.add_tokens(list(CHANNELS))
    caps = {"prompt_tokens": 512, "one_shot_prompt_tokens": 512}
    prompter = Prompter(tokenizer, chat=True, thinking=True, **caps)
    [item] = letter_items(1)
    prompt = prompter.build(item, "open")
    bare = prompter.after(prompt, None)
    assert bare.text == prompt.text + (
        "<|channel|>final<|message|>" if template == GPT_OSS else ""
    )
    assert bare.token_ids == tuple(
        tokenizer.encode(bare.text, add_special_tokens=False)
    )

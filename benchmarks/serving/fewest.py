"""The fewest token forwards that the answers of a pass need, whoever computes them.

A token forward is one token's way through all layers; what it leaves in the KV cache and its hidden state depend on the
tokens up to it and on nothing else. So what was asked of a checkpoint needs one forward for each *distinct prefix* of
a prompt and its answer, over all items together: items whose prompts begin alike share that beginning, as they do in a
prefix cache. An answer is anything that was returned: a greedy answer, each beam, each sample, each scored option.

- Nobody asks what follows an answer's last token, EOS or not: it is not forwarded, unless another answer goes on there.
- The prompt's last token is forwarded: the answer's first token comes from the distribution after it.
- A distribution (a row through the output head) is needed once for each distinct prefix that an answer's token follows.
- Attention reads what the tokens of a prefix have left in the KV cache. A generated token follows its own such read. A
  scored answer is known beforehand, so one read serves all of its tokens. Rows that share a prefix read it each, as in
  all of vLLM's kernels.

This is a bound from below: a beam search must also look at prefixes of beams that it does not return.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluator.core.records import Record
from evaluator.probes.base import ItemPlan

_GENERATED = ("greedy", "beam", "sample")  # probes whose answers the model chose

# The ids of a prompt, at least one; those of an answer to it; whether the model chose them one by one.
Answered = tuple[Sequence[int], Sequence[int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """What any engine must compute."""

    forwards: int
    distributions: int
    steps: int  # one after the other: the tokens of the longest answer
    cached: int  # tokens that are read from the KV cache, over all reads


def fewest(answers: Iterable[Answered]) -> Fewest:
    """Count the distinct prefixes of all `answers`; an answer without tokens was not asked for."""
    children: dict[tuple[int, int], int] = {}  # a trie: (node, token) -> node; the root is 0
    asked: set[int] = set()  # nodes after which a distribution is needed
    reads: dict[int, int] = {}  # node -> how many tokens a row reads there
    steps = 0
    for prompt, answer, generated in answers:
        if not answer:
            continue
        node = 0
        for token in prompt:
            node = children.setdefault((node, token), len(children) + 1)
        path = [node]
        for token in answer[:-1]:
            path.append(node := children.setdefault((node, token), len(children) + 1))
        asked.update(path)
        depths = dict(zip(path, range(len(prompt), len(prompt) + len(path)), strict=True))
        reads |= depths if generated else {node: depths[node]}
        steps = max(steps, len(answer))
    return Fewest(forwards=len(children), distributions=len(asked), steps=steps, cached=sum(reads.values()))


def answers_of(records: Iterable[Record], plans: Mapping[tuple[str, str], ItemPlan]) -> Iterator[Answered]:
    """Each record's prompt and answer; `plans` is by language and item id. Records without an answer have none.

    Where the tokenizer merged prompt and option, the option stands after fewer of the prompt's ids.
    """
    for record in records:
        if record.token_ids:
            prompt = plans[record.language, record.item_id].prompts[record.format]
            yield prompt.token_ids[: record.prompt_tokens], record.token_ids, record.probe in _GENERATED

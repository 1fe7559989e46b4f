"""On real vocabularies: the answer boundary for the gold answers of all of XQuAD,
and chat templates."""

import pytest

from evaluator.asking.prompts import Prompter
from evaluator.tasks.loading import gold_option, load_task
from tests.support.tokenizers import NAMES, SHARED, TEMPLATES, absent, real_tokenizer

LANGUAGES = ("el", "en", "hi", "zh")

# How many of the 1,190 items of each language are flagged, where any are. A completion
# prompt ends in a colon, and no vocabulary joins a colon and a space; Mistral's
# template ends in "]", which it joins with "(", "," and "$".
FLAGGED = {("mistral", True): {"el": 1, "en": 3, "hi": 3}}


# a vocabulary that joins nothing, and one that does
_SHORT = [("qwen", False), ("mistral", True)]


def _case(name, chat):
    marks = () if (name, chat) in _SHORT else pytest.mark.long
    return pytest.param(
        name, chat, id=f"{name}-{'chat' if chat else 'completion'}", marks=marks
    )


@pytest.mark.parametrize(
    ("name", "chat"), [_case(name, chat) for name in NAMES for chat in (False, True)]
)
def test_boundaries_of_xquad_gold_answers(name, chat):
    if absent(name) or not (SHARED / "xquad").is_dir():
        pytest.skip(
            f"the shared vocabulary of {name} or the shared XQuAD files are not here"
        )
    tokenizer = real_tokenizer(name)
    before, tokenizer.chat_template = (
        tokenizer.chat_template,
        TEMPLATES[name] if chat else None,
    )
    try:
        built = Prompter(
            tokenizer, chat=chat, prompt_tokens=512, one_shot_prompt_tokens=1024
        )
        flagged = {}
        for language, pool in load_task(
            f"xquad:{SHARED / 'xquad'}", LANGUAGES
        ).pools.items():
            # A boundary depends on the prompt's end only, which is the same for every
            # item.
            prompt = built.build(pool[0], "open", context_chars=0)
            answers = [gold_option(item) for item in pool]
            assert len(answers) == 1190
            scored = built.continuations(prompt, answers)
            separator = "" if chat else " "
            texts = [f"{prompt.text}{separator}{answer}" for answer in answers]
            joint = tokenizer(texts, add_special_tokens=not chat).input_ids
            for one, ids in zip(scored, joint, strict=True):
                assert list(one.prompt_ids + one.continuation_ids) == ids
                common = len(one.prompt_ids)
                assert one.prompt_ids == prompt.token_ids[:common]
                # the last token in common: the next one is another
                if common < len(prompt.token_ids):
                    assert one.continuation_ids[0] != prompt.token_ids[common]
            flagged[language] = sum(
                one.prompt_ids != prompt.token_ids for one in scored
            )
    finally:
        tokenizer.chat_template = before
    assert flagged == dict.fromkeys(LANGUAGES, 0) | FLAGGED.get((name, chat), {})

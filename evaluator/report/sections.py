"""What the page says in words: a title and how to read it for every table, and the definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    title: str
    reading: str


SECTIONS: Mapping[str, Section] = {
    "accuracy": Section(
        "How much is still right?",
        "Open: the model answers greedily and its output must contain a gold answer. Choice: the options are scored "
        "by log-likelihood after the same prompt, and the gold one must win. When open falls and choice does not, a "
        "multiple-choice benchmark would not have noticed. Whiskers are Wilson 95 % intervals.",
    ),
    "fates": Section(
        "What became of the answers that the dense model knew?",
        "Only items that the dense model both produced and recognised. kept: still both. mc_only: the pruned model "
        "still picks the answer but no longer says it; its share is the dissociation rate. produced_only: the reverse. "
        "lost: neither. mc_only_corrected takes away what guessing among the options would give. A re-run of the dense "
        "model, where there is one, shows how much of this is noise of the measurement (noise_floor).",
    ),
    "ladder": Section(
        "Does more support mean less damage?",
        "The drop from the dense model when nothing is shown (open), when candidates are listed in the prompt (shown), "
        "and when options are only scored (choice). The second panel divides each drop by what there was to lose. "
        "Perplexity, where it was asked, stands beside them: it may hardly move while answers go unsaid.",
    ),
    "recovery": Section(
        "Can the answer still be reached?",
        "Whether any of the beams or any of the samples contains a gold answer. At the right only the items that the "
        "same checkpoint's greedy output misses: the share that broader decoding wins back. Beams and samples are "
        "asked of the first 100 of each language's items; the greedy numbers here are on the same items.",
    ),
    "rank": Section(
        "Where in the distribution is the answer?",
        "The rank of the gold answer's first token among the whole vocabulary, 1 being the most likely. An answer that "
        "was demoted sits at rank 2 to 20; one that was erased is far below. The margin is how many nats it lacks to "
        "the top token.",
    ),
    "pr_gap": Section(
        "Does producing suffer more than recognising?",
        "Delta_PR is the headroom-normalised drop of open minus that of choice. Above zero, the answers are harder to "
        "say than to recognise; at or below zero, recognition is lost just as fast.",
    ),
    "candidates": Section(
        "Do candidates help only when they hold the answer?",
        "Greedy accuracy with no candidates, with distractors only, with unrelated candidates, and with the gold "
        "answer among them, on the same items.",
    ),
    "hard_distractors": Section(
        "Is choice only easy because the other options are silly?",
        "Standard distractors are answers to other questions; hard ones are those most similar to the gold answer. "
        "Left: choice accuracy. Right: the share that is recognised but no longer said, among the answers that the "
        "dense model produced and recognised among both kinds.",
    ),
    "recovery_seeds": Section(
        "Is recovery stable over seeds?",
        "Sample recovery among greedy failures for every run seed: lowest, mean and highest.",
    ),
    "one_shot": Section(
        "Does one example repair it?",
        "The gap to the dense model without and with one example in the prompt. Where it closes, the answer was there. "
        "zero_shot_format says whether the prompt without the example had the same cut context (open_capped).",
    ),
    "calibration": Section(
        "Does calibration close the gap?",
        "Open and choice accuracy of checkpoints that differ in the text that calibrated the pruning. If both rise "
        "together, the gap between them stays.",
    ),
    "fertility": Section(
        "Do finely cut languages lose more?",
        "Fertility is how many tokens the tokenizer makes of a word of the answer options (of a character, in scripts "
        "without spaces). Beside it the drop of each language; every dot is a language.",
    ),
    "perplexity": Section(
        "Would perplexity have told?",
        "Perplexity on a text, over non-overlapping windows. Intervals resample windows; the ratio is to the base on "
        "the same windows.",
    ),
    "matching": Section(
        "Does a second grader change the picture?",
        "A matcher model sees question, reference and response, and says whether they match in meaning; a response "
        "that contains a gold answer counts as right without it. Left: accuracy by containment, by each matcher and by "
        "the panel's majority. Right: Scott's pi, the agreement beyond chance, of containment with each matcher (where "
        "all responses were judged) and of the matchers with each other on the responses that both judged. The figure "
        "shows the first kind of answer in the table; other formats, beams and samples that were judged have rows of "
        "their own. A tie in a panel is a no.",
    ),
}

DEFINITIONS: Mapping[str, str] = {
    "produced": "the greedy output to the open prompt contains a gold answer, ignoring case and punctuation",
    "recognised": "of the options scored after the open prompt, the gold one has strictly the highest log-likelihood",
    "kept / mc_only / produced_only / lost": "the fate of an item that the dense model both produced and recognised",
    "not known": "the dense model did not both produce and recognise the item, so it has no fate",
    "recoverability": "a gold answer appears in any beam (or in any sample)",
    "rank": "position of the gold answer's first token in the next-token distribution after the open prompt",
    "margin": "log-probability of the gold answer's first token minus that of the top token, in nats",
    "fertility": "tokens per word of the answer options; per character in scripts without spaces between words",
    "perplexity": "exp of the mean negative log-likelihood per predicted token of a text",
    "hard distractors": "the three answers of a language that share most character trigrams with the gold answer",
    "re-run / noise floor": "a checkpoint with its base's own weights / what it calls mc_only, which can only be noise",
    "matcher / panel": "a model that judges whether a response means the reference / several, by majority (tie: no)",
    "Scott's pi": "agreement of two graders beyond what random verdicts with their share of yes would give",
    "unpaired": "items that only one of the two compared checkpoints was asked",
    "drop": "dense minus pruned accuracy, on the items measured in both",
    "normalised drop": "drop / (dense accuracy - floor); the floor is 0 for generated answers and 1/K for K options",
    "Delta_PR": "normalised drop of open minus normalised drop of choice",
    "excluded": "an item that could not be asked (no gold answer, no distractor, no example left, a prompt that is too "
    "long); counted, never graded",
    "engine error": "the engine failed on this item; counted, never graded",
    "intervals": "Wilson 95 % for rates; for differences and medians a bootstrap of 2,000 draws over contexts, drawn "
    "jointly for all checkpoints and, where contexts are translations, for all languages; p values are exact McNemar, "
    "holm_p corrects them over the checkpoints",
    "all / mean": "languages pooled over items / the unweighted mean over languages",
}

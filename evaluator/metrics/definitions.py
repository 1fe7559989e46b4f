"""What the words of the report mean, as its last section says."""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "open / choice": "the model writes the answer, decoded greedily / it ranks given options by their log-likelihood",
    "produced": "the greedy output to the open prompt contains a gold answer, ignoring case and punctuation",
    "recognised": "the gold option has strictly the highest log-likelihood of the options after the open prompt",
    "known": "the dense model both produced and recognised the answer; only known answers have a fate",
    "kept": "a known answer that the pruned model still produces and still recognises",
    "mc_only": "a known answer that the pruned model still recognises but no longer produces. Multiple choice alone "
    "would not notice. Its share of the known answers is the dissociation rate",
    "produced_only": "a known answer that the pruned model still produces but no longer recognises",
    "lost": "a known answer that the pruned model neither produces nor recognises. Lost does not mean erased from the "
    "weights: beams, samples, another prompt or the answer's rank may still find it",
    "recoverability": "a gold answer appears in any beam (or in any sample); recovered: in items that greedy misses",
    "rank": "rank of the gold answer's first token in the next-token distribution after the open prompt; 1 is the top",
    "aligned rank": "if the base's greedy answer contains a gold answer: the rank of its first token, as the base "
    "wrote it, after the open prompt and the lead-in (the base's words before it); 1 on the base itself, up to ties "
    "and rounding",
    "margin": "log-probability of the gold answer's first token minus that of the top token, in nats",
    "drop": "dense minus pruned accuracy in percentage points (pp), on the items measured in both",
    "normalised drop": "drop / (dense accuracy - floor); the floor is 0 for generated answers and 1/K for K options",
    "Delta_PR": "normalised drop of open minus normalised drop of choice",
    "recovery": "the checkpoint's accuracy in percent of its base's, on the items measured in both",
    "flips": "items that went from right to wrong, or from wrong to right",
    "kappa": "agreement beyond chance, which is 0: of right and wrong (error consistency; 1 is complete agreement), "
    "or of the probabilities of a choice's options (CAPA)",
    "Borda / Copeland / minimax": "languages and tasks as voters: checkpoints below it, summed over the voters / "
    "checkpoints that it beats by majority, minus those that beat it / ranked by the voters of its worst defeat",
    "PASS / WARN / BLOCK": "every loss is surely within its tolerance / undecided / a loss is surely beyond it; the "
    "tolerances are those of `resurface gate`",
    "ANOMALOUS": "the base does no better than guessing, or the checkpoint gained more than compression explains",
    "fertility": "tokens per word of the answer options; per character in scripts without spaces between words",
    "perplexity": "exp of the mean negative log-likelihood per predicted token of a text",
    "hard distractors": "the three answers of a language that share most character trigrams with the gold answer",
    "re-run / noise floor": "a checkpoint whose weights equal its base's / its mc_only share, which is "
    "measurement noise",
    "matcher / panel": "a model that judges whether a response means a gold answer / several, by majority (tie: no)",
    "sensitivity / specificity": "share of the matching control pairs that a matcher accepts / of the others that it "
    "denies; unfit: the whole interval of one is below 80 %",
    "corrected": "the accuracy from a matcher's verdicts and its errors on control pairs (Rogan and Gladen); its "
    "interval resamples items and draws the error rates from their Jeffreys posteriors",
    "Scott's pi": "agreement of two graders beyond that of random verdicts with the same share of yes",
    "unpaired": "items that only one of the two compared checkpoints answered",
    "excluded": "an item that could not be posed (no gold answer, no distractor, no example left, a prompt that is "
    "too long); counted, never graded",
    "engine error": "the engine failed on this item; counted, never graded",
    "intervals": "Wilson 95 % for rates; for differences and medians a bootstrap of 2,000 draws over contexts, drawn "
    "jointly for all checkpoints and, where contexts are translations, for all languages; p values are exact McNemar; "
    "holm_p corrects them over the checkpoints that have other weights than their base",
    "all / mean": "languages pooled over items / the unweighted mean over languages",
}

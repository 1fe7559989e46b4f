"""What is no longer there, and what to use instead: one table for commands, options,
keys of YAML and registered names.

The lookup of an unknown name asks it first (`errors.unknown`).
"""

from collections.abc import Mapping

# A name as it was typed or written -> a sentence that names the replacement.
REMOVED: Mapping[str, str] = {
    "screen": "a run grows by `items:`; `resurface gate` judges it",
    "heads": "`drop` and `layers` take layers out, `reap` experts",
    "channels": "`drop` and `layers` take layers out, `reap` experts",
    "repair": "`sparsegpt` also updates the weights that stay",
    "--repair": "`sparsegpt` also updates the weights that stay",
    "pause": "`resurface stop RUN`; the same command resumes",
    "resume": "the run's own command resumes it",
    "same_device": "the scheduler gives a run GPUs of one type (Slurm: --constraint)",
    "sample_seeds": "`seeds`",
}

"""What is no longer there, and what to use instead: one table for commands, options,
keys of YAML and registered names.

The lookup of an unknown name asks it first (`errors.unknown`).
"""

from collections.abc import Mapping

# A name as it was typed or written -> a sentence that names the replacement. A name that
# other places still know stands with what it was: `benchmark gate`.
REMOVED: Mapping[str, str] = {
    "screen": "a run grows by `items:`; `resurface gate` judges it",
    "heads": "`drop` and `layers` take layers out, `reap` experts",
    "channels": "`drop` and `layers` take layers out, `reap` experts",
    "repair": "`sparsegpt` also updates the weights that stay",
    "--repair": "`sparsegpt` also updates the weights that stay",
    "pause": "`resurface stop RUN`; the same command resumes",
    "resume": "the run's own command resumes it",
    "same_device": "the scheduler gives a run GPUs of one type (Slurm: --constraint)",
    "record": "`resurface bench pass --out DIR` writes its figures",
    "--machine": "`--dry-run --out RUN` takes the speed of an earlier run",
    "--push": "`hf upload ORG/NAME DIR` uploads a checkpoint",
    "--public": "`hf upload ORG/NAME DIR` uploads a checkpoint",
    **dict.fromkeys(
        ("format kuberay", "format job", "format up"),
        "docs/cluster.md has files for KubeRay; RAY_ADDRESS names a Ray cluster",
    ),
    "command probes": "`resurface list probes`",
    "command methods": "`resurface list methods`",
    "--to format lm-eval": "`--to card` writes a run for people; open_run for programs",
    "benchmark gate": "`python -m benchmarks.gate` prints the error rates",
    "vote": "docs/python.md has a recipe in pandas",
    "overlap": "docs/python.md has a recipe in pandas",
    "prompt_order": "docs/python.md has a recipe in pandas; table `prompts` stays",
    "aligned_beam": "`aligned_rank` follows the base's words",
    "aligned_choice": "`aligned_rank` follows the base's words",
    "direct": "a second task with `thinking: off`, with a `name` of its own",
    "judges": "table `matching` says what each judge made of the control pairs",
    "--fit-only": "leave out `--matcher` of a judge that fails the control pairs",
    "--controls": "the 60 control pairs are fixed",
    "weak": "docs/python.md has a recipe in pandas",
    "sample_seeds": "`seeds`",
}

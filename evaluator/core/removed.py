"""What is no longer there, and what to use instead: one table for commands, options,
keys of YAML and registered names.

The lookup of an unknown name asks it first (`errors.unknown`, `options.explained`).
"""

from collections.abc import Mapping

_GROWS = "a run grows by `items:`; `resurface gate` judges it"
_STOPS = "`resurface stop RUN`; the same command resumes"
_LAYERS = "`drop` and `layers` take layers out, `reap` experts"
_UPDATES = "`sparsegpt` also updates the weights that stay"
_UPLOADS = "`hf upload ORG/NAME DIR` uploads a checkpoint"
_KUBERAY = "docs/cluster.md has files for KubeRay; RAY_ADDRESS names a Ray cluster"
_FOLLOWS = "`aligned_rank` follows the base's words"
_RECIPE = "docs/python.md has a recipe in pandas"
_SPEED = "`--dry-run --out RUN` takes the speed of an earlier run"

# What it was and its name -> the replacement. An option stands with its command.
REMOVED: Mapping[str, str] = {
    "command screen": _GROWS,
    "key screen": _GROWS,
    "command pause": _STOPS,
    "command resume": "the run's own command resumes it",
    "command probes": "`resurface list probes`",
    "command methods": "`resurface list methods`",
    "benchmark record": "`resurface bench pass --out DIR` writes its figures",
    "benchmark gate": "`python -m benchmarks.gate` prints the error rates",
    "key same_device": "the scheduler gives a run GPUs of one type (--constraint)",
    "key sample_seeds": "`seeds`",
    "key repair": _UPDATES,
    "prune --repair": _UPDATES,
    "compress --repair": _UPDATES,
    "method heads": _LAYERS,
    "method channels": _LAYERS,
    "prune --push": _UPLOADS,
    "prune --public": _UPLOADS,
    "prune --run": "`resurface export RUN --to card` writes a card",
    "eval --machine": _SPEED,
    "sweep --machine": _SPEED,
    "eval --sample-seeds": "`--seeds`",
    "doctor --dtype": "`eval --control dtype:bfloat16` compares dtypes",
    "match --controls": "the 60 control pairs are fixed",
    "match --fit-only": "leave out a `--matcher` that fails the control pairs",
    "format kuberay": _KUBERAY,
    "format job": _KUBERAY,
    "format up": _KUBERAY,
    "--to format lm-eval": "`--to card` writes a run for people; open_run for programs",
    "probe aligned_beam": _FOLLOWS,
    "probe aligned_choice": _FOLLOWS,
    "probe direct": "a second task with `thinking: off`, with a `name` of its own",
    "probe with responses aligned_beam": _FOLLOWS,
    "probe with responses direct": "`greedy` has the answers",
    "table vote": _RECIPE,
    "table overlap": _RECIPE,
    "table prompt_order": f"{_RECIPE}; table `prompts` stays",
    "table weak": _RECIPE,
    "table judges": "table `matching` says what each judge made of the control pairs",
}

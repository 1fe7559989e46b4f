"""What `SamplingParams.extra_args` carries for us: orders of a request that vLLM has no field for."""

FORCED = "forced_token_ids"  # the tokens to generate
NUCLEUS = "nucleus"  # top_p of a row that our own sampler draws
SCORED_FROM = "scored_from"  # how many tokens of the prompt are the context; the rest is a continuation
REFERENCE = "reference"  # the fields of a Score's reference

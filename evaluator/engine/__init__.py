"""Engines generate from token ids and score them. `base` defines the interface; only
`vllm` imports vLLM.

Importing this package imports neither torch nor vLLM: an engine does that when it is
built.
"""

from evaluator.engine.config import ENGINES
from evaluator.engine.endpoint import ENDPOINT
from evaluator.engine.torch_engine import TORCH
from evaluator.engine.vllm.engine import VLLM

ENGINES.register(VLLM)
ENGINES.register(TORCH)
ENGINES.register(ENDPOINT)

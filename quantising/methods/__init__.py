"""The ways to quantise: a class for each, and their registry.

To add one, write its class and add its line here; sweep files, preflight and estimates read the object. Importing this
needs no torch.
"""

from __future__ import annotations

from evaluator.core.config import Registry
from quantising.methods.base import Method
from quantising.methods.llm_compressor import AWQ, GPTQ, Recipe, SmoothQuant
from quantising.methods.online import Online
from quantising.methods.rtn import RTN

METHODS: Registry[Method] = Registry("method")
METHODS.register(RTN())
METHODS.register(Online())
METHODS.register(GPTQ())
METHODS.register(AWQ())
METHODS.register(SmoothQuant())
METHODS.register(Recipe())

"""The ways to quantise, and to remove experts: a class for each, and their registry.

To add one, write its class and add its line here; sweep files, preflight and
estimates read the object. Importing this needs no torch."""

from evaluator.core.config import Registry
from quantising.methods.base import Method
from quantising.methods.llm_compressor import AWQ, GPTQ, Recipe, SmoothQuant
from quantising.methods.plain import RTN, Online
from quantising.methods.reap import Reap

METHODS: Registry[Method] = Registry(
    "method", (RTN(), Online(), GPTQ(), AWQ(), SmoothQuant(), Recipe(), Reap())
)

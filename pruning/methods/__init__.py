"""The methods that choose which weights or layers go, and their
registry.

To add a method, write its class and add its line here; the command line, sweep files,
estimates and the layer driver read the object. Importing this needs no torch, so that a
mistyped name is reported at once.
"""

from evaluator.core.config import Registry
from pruning.methods.base import Method, Removal
from pruning.methods.removals import Drop, Layers
from pruning.methods.scores import RIA, Magnitude, SparseGPT, Wanda

METHODS: Registry[Method | Removal] = Registry(
    "method", (Magnitude(), Wanda(), SparseGPT(), RIA(), Layers(), Drop())
)

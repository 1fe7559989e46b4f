"""The methods that choose which weights, layers, heads or channels go, and their registry.

To add a method, write its file and add its line here; the command line, sweep files, estimates and the layer driver
read the object. Importing this needs no torch, so that a mistyped name is reported at once.
"""

from __future__ import annotations

from evaluator.core.config import Registry
from pruning.methods.base import Method, Removal
from pruning.methods.layers import Drop, Layers
from pruning.methods.magnitude import Magnitude
from pruning.methods.ria import RIA
from pruning.methods.sparsegpt import SparseGPT
from pruning.methods.wanda import Wanda
from pruning.methods.wanda_sp import Channels, Heads

METHODS: Registry[Method | Removal] = Registry("method")
METHODS.register(Magnitude())
METHODS.register(Wanda())
METHODS.register(SparseGPT())
METHODS.register(RIA())
METHODS.register(Layers())
METHODS.register(Drop())
METHODS.register(Heads())
METHODS.register(Channels())

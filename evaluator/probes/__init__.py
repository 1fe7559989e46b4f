"""How an answer is looked for: from a question to requests, and from their responses to
records.

`PROBES` holds one object for each probe. Its order is that of records and settings:
identities of runs depend on it.
"""

from evaluator.probes.base import PROBES, answering_probes
from evaluator.probes.beam import Beam
from evaluator.probes.choice import Choice, HardChoice
from evaluator.probes.fidelity import Fidelity, TextFidelity
from evaluator.probes.greedy import Greedy
from evaluator.probes.perplexity import Perplexity
from evaluator.probes.rank import AlignedRank, Rank
from evaluator.probes.sample import Sample

__all__ = ["PROBES", "answering_probes"]

for probe in (
    Greedy,
    Beam,
    Sample,
    Choice,
    Rank,
    AlignedRank,
    HardChoice,
    Perplexity,
    Fidelity,
    TextFidelity,
):
    PROBES.register(probe())

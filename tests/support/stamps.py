"""What records of tests carry, where a test asks an engine that needs no checkpoint."""

from evaluator.probes.recording import Stamp

STAMP = Stamp(
    checkpoint="pruned",
    weights_digest="d1",
    base="dense",
    method="wanda",
    pattern="unstructured",
    sparsity=0.5,
    calibration="gazetteer",
    engine="fake",
    engine_version="1",
    dtype="float32",
)

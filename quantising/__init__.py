"""Dense or pruned checkpoint -> quantised checkpoint.

The modules in the order of the road; each imports only from those before it:

    environment      a virtual environment for a program whose requirements are not ours
    schemes          what may be rounded to what, and the `quantization_config` that says so
    manifest         what is said of a finished checkpoint
    llm_compressor   llm-compressor, in an environment of its own
    methods          the ways to quantise, one object each; `rounding` is our own
    config           what a job is
    job, run         a job checked, and done

It knows `pruning` for what a checkpoint, a calibration text and a finished directory are. Nothing there knows it.
"""

"""Dense or pruned checkpoint -> quantised checkpoint.

Each module imports only from those listed before it:

    environment      a virtual environment for a program whose requirements are not
                     ours
    schemes          the schemes of rounding, and their `quantization_config`
    methods          the ways to quantise, one object each; `rounding` is our own,
                     `llm_compressor_job` runs elsewhere
    config           the configuration of a job, and the manifest of a finished
                     checkpoint
    run              a job is checked and done

It shares `pruning`'s jobs, calibration texts and output. Nothing there knows it."""

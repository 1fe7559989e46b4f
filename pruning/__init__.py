"""Dense checkpoint -> sparse or smaller checkpoint, in PyTorch, one decoder layer at
a time.

Each module imports only from those listed before it:

    methods        patterns of weights that may go, and how a method chooses them
    config         the configuration of a job
    calibration    the text that a job sees
    model          the dense model, one layer at a time
    output         a job that is checked, and the checkpoint that it writes;
                   quantising shares these
    layers         observe a layer, prune it, run it for the inputs of the next
    structured     whole layers or experts taken out
    run, verify    a job is done; its checkpoint is compared with the manifest"""

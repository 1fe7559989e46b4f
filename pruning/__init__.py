"""Dense checkpoint -> sparse or smaller checkpoint, in PyTorch, one decoder layer at a time.

The rooms in the order of the road; each imports only from those before it:

    pulse               signs that a job gets on
    patterns, methods   which weights may go, and how a method chooses them
    config              what a job is
    calibration         the text that a job sees
    model               the dense model, one layer at a time
    layers              the walk: observe a layer, prune it, run it for the inputs of the next
    structured          whole layers, heads or channels taken out
    output              the sparse checkpoint on disk and its manifest
    job, run            a job checked, and done
"""

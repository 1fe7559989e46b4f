"""The walk through the layers: observe a layer, prune it, and run it for the inputs
of the next."""

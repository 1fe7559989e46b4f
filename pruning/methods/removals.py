"""Whole layers, by their angular distance or by a list."""

from pruning.methods.base import Removal


class Layers(Removal):
    """The block of consecutive layers across which the residual stream turns least.

    Gromov et al., The Unreasonable Ineffectiveness of the Deeper Layers, section 3.2
    (arXiv:2403.17887): of all blocks of n layers, the one that begins at the layer l
    with the smallest d(x^l, x^(l+n)) goes, where

        d(x^l, x^(l+n)) = 1/pi arccos( x^l . x^(l+n) / (|x^l| |x^(l+n)|) ),

    x^l is the input of layer l at a text's last token (for l = the number of layers:
    the last layer's output), and d is averaged over the calibration texts."""

    name = "layers"
    help = (
        "removes the consecutive layers that change the hidden states least (angular"
        " distance)"
    )
    passes = 1


class Drop(Removal):
    """The layers that the pattern lists."""

    name = "drop"
    help = "removes the layers in --pattern, e.g. 20-25,28; needs no calibration text"
    listed = True

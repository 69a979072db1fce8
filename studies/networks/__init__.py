"""Networks of the papers that studies alone use; a plan file names them in a checkout as `studies.networks:convnet` and so on."""

from studies.networks.convnet import convnet, convnet9
from studies.networks.pooled import alexnet_small, vgg9

__all__ = ["alexnet_small", "convnet", "convnet9", "vgg9"]

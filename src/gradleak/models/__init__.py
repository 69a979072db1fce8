"""The networks of the papers, with explicit initialization: the same generator gives the same weights."""

from gradleak.models.huggingface import CheckpointTask, huggingface
from gradleak.models.initialize import Activation, initialize_default, initialize_uniform
from gradleak.models.minilm import SentenceClassifier, minilm
from gradleak.models.pooled_convnets import lenet5
from gradleak.models.resnet import BasicBlock, Bottleneck, Norm, Stem, resnet, resnet8, resnet18
from gradleak.models.small import lenet_dlg, lenet_i2f, linear_model, mlp
from gradleak.models.text_classifier import TokenEmbedding, text_classifier
from gradleak.models.transformer import Transformer, transformer
from gradleak.models.vit import ViT, vit

__all__ = [
    "Activation",
    "BasicBlock",
    "Bottleneck",
    "CheckpointTask",
    "Norm",
    "SentenceClassifier",
    "Stem",
    "TokenEmbedding",
    "Transformer",
    "ViT",
    "huggingface",
    "initialize_default",
    "initialize_uniform",
    "lenet5",
    "lenet_dlg",
    "lenet_i2f",
    "linear_model",
    "minilm",
    "mlp",
    "resnet",
    "resnet8",
    "resnet18",
    "text_classifier",
    "transformer",
    "vit",
]

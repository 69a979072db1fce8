"""Published data sets of the papers, from files of one's own; nothing is downloaded.

A plan file names them in a checkout as `studies.datasets:celeba` and so on. `cifar100` returns a `Batch` to audit, the others a
`gradleak.data.Population` to play an inference game on, or the `Table` behind it.
"""

from studies.datasets.cifar100 import cifar100
from studies.datasets.faces import celeba, utkface
from studies.datasets.german import german_credit, german_credit_table
from studies.datasets.heritage_health import heritage_health, heritage_health_table
from studies.datasets.planted import cifar_images, idx_images
from studies.datasets.speech import crema_d, speech_digits

__all__ = [
    "celeba",
    "cifar100",
    "cifar_images",
    "crema_d",
    "german_credit",
    "german_credit_table",
    "heritage_health",
    "heritage_health_table",
    "idx_images",
    "speech_digits",
    "utkface",
]

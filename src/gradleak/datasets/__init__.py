"""Real data: from inside Python packages, or from files of one's own; nothing is downloaded.

`adult_census`, `mnist_digits`, `scikit_digits`, `image_file`, `idx_file` and `cifar100` return a `Batch` to audit. The others
return a `gradleak.games.Population` to play an inference game on, or the `Table` behind it.
"""

from gradleak.datasets.adult import adult_census, adult_files, adult_files_table, adult_population, adult_table
from gradleak.datasets.cifar100 import cifar100
from gradleak.datasets.digits import mnist_digits, scikit_digits
from gradleak.datasets.faces import celeba, utkface
from gradleak.datasets.german import german_credit, german_credit_table
from gradleak.datasets.heritage_health import heritage_health, heritage_health_table
from gradleak.datasets.idx_file import idx_file
from gradleak.datasets.image_file import image_file
from gradleak.datasets.sentences import Vocabulary, sentences
from gradleak.datasets.speech import crema_d, speech_digits
from gradleak.datasets.synthetic import cifar_images, constructed_users, idx_images

__all__ = [
    "Vocabulary",
    "adult_census",
    "adult_files",
    "adult_files_table",
    "adult_population",
    "adult_table",
    "celeba",
    "cifar100",
    "cifar_images",
    "constructed_users",
    "crema_d",
    "german_credit",
    "german_credit_table",
    "heritage_health",
    "heritage_health_table",
    "idx_file",
    "idx_images",
    "image_file",
    "mnist_digits",
    "scikit_digits",
    "sentences",
    "speech_digits",
    "utkface",
]

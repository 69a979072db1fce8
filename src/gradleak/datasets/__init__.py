"""Real data: from inside Python packages, or from files of one's own; nothing is downloaded.

`adult_census`, `mnist_digits`, `scikit_digits`, `python_topics`, and those for files of one's own (`csv_file`, `array_file`,
`image_file`, `image_folder`, `idx_file`, `text_file`) return a `Batch` to audit. The others return a
`gradleak.data.Population` to play an inference game on, or the `Table` behind it.
"""

from gradleak.datasets.adult import adult_census, adult_files, adult_files_table, adult_population, adult_table
from gradleak.datasets.digits import mnist_digits, scikit_digits
from gradleak.datasets.files import idx_file, image_file
from gradleak.datasets.own_files import array_file, csv_file, image_folder
from gradleak.datasets.sentences import sentences
from gradleak.datasets.synthetic import constructed_users
from gradleak.datasets.text import TextTargets, python_topics, text_file

__all__ = [
    "TextTargets",
    "adult_census",
    "adult_files",
    "adult_files_table",
    "adult_population",
    "adult_table",
    "array_file",
    "constructed_users",
    "csv_file",
    "idx_file",
    "image_file",
    "image_folder",
    "mnist_digits",
    "python_topics",
    "scikit_digits",
    "sentences",
    "text_file",
]

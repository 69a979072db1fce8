"""The paper's adversary: trees that vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator
from gradleak.results import BREIMAN_2001, LI_2024, Citation, Count


@dataclass(frozen=True, kw_only=True)
class RandomForest(Estimator):
    """p(a | g) = (votes for a + 1)/(trees + m), from trees grown on bootstrap samples of the shadow updates.

    A tree splits its one vote by the shares of labels in the leaf that the update falls into. In trees grown to the end
    leaves hold one class, and that is the count of whole votes; a leaf that holds several, because their updates are
    equal or `leaf_rows` and `depth` ask for it, would give its whole vote to the lower-numbered class of a tie, and would
    throw away how sure it is. `shares` are votes/trees without the one more, which is there because a class without a
    vote in one round would have probability 0 whatever other rounds say.

    **Cost**: for n rows and f features about trees · √f · n log² n comparisons; f itself counts little.

    **Source**: Li et al. 2024, section 5.1.3 (50 trees; scikit-learn's other defaults, which they seem to use: √f
    features a split, Gini impurity, grown to the end); forests from Breiman 2001. The smoothing is ours.

    Attributes:
        trees: how many.
        depth: the largest depth of a tree; None for none.
        leaf_rows: shadow updates that a leaf holds at least.

    Raises:
        InputError: for a number that is not a whole number of at least 1.
    """

    smoothed: ClassVar[bool] = True
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, BREIMAN_2001)

    trees: Count = 50
    depth: Count | None = None
    leaf_rows: Count = 1

    def weight(self, rows: int) -> int:
        """The trees."""
        return self.trees

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(
            n_estimators=self.trees,
            max_depth=self.depth,
            min_samples_leaf=self.leaf_rows,
            n_jobs=1,
            random_state=seed,
        ).fit(rows, labels)

    def _logits(self, model: Any, rows: Rows) -> Floats:
        with np.errstate(divide="ignore"):
            logits: Floats = np.log(model.predict_proba(rows))
        return logits

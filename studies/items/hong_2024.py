"""Items of Hong et al. 2024, of which our copy has the results on: eigenvalues that foresee the quality of a reconstruction."""

from gradleak.results import HONG_2024
from studies.items.item import Checked, Item, Paper, Reading, Run
from studies.items.rules import Above, Below, Near

_DESCENT = "attack, L at the point"
_LAST = "Spearman of LAVP with the last loss"
_NORM = "above the gradient norm"
_PAGE = "studies.md#does-lavp-foresee-reconstruction-quality"


def _lavp(loss: str, proxy: str, paper: str, least: float, printed: str, where: str) -> Reading:
    return Reading(
        quantity=f"{loss} attack: Spearman of {proxy} with mse, mean over architectures", shown=f"{proxy}, {loss} attack",
        paper=paper, rule=Above(least), printed=printed, where=where,
    )  # fmt: skip


HONG = Paper(
    citation=HONG_2024,
    items=[
        Item(
            number="Hessians, equation 5",
            says="extreme eigenvalues of the Hessian of the L2 and of the cosine loss at the truth",
            code=[
                Checked(
                    name="gradleak.Vulnerability",
                    test="tests/risk/test_vulnerability.py::test_is_the_extreme_eigenvalue_of_the_hessian",
                )
            ],
        ),
        Item(
            number="fusion",
            says="geometric mean of the largest L2 and the smallest cosine eigenvalue",
            code=[
                Checked(
                    name="gradleak.risk.VulnerabilityFusion",
                    test="tests/risk/test_vulnerability.py::test_reference_values_of_the_fusion",
                )
            ],
        ),
        Item(
            number="table 1",
            says="LAVP goes with the quality of images of low resolution, mostly above 0.5, up to 0.8 by cosine",
            runs=[
                Run(
                    study="lavp_quality",
                    settings={"count": 30},
                    page=_PAGE,
                    cost="an hour of one core",
                    readings=[
                        _lavp("l2", "lavp_l2_max", "mostly above 0.5", 0.4, "0.45 (0.24 to 0.60)", "| LAVP L2, max | 0.45"),
                        _lavp("cosine", "lavp_cosine_max", "about 0.8", 0.7, "0.58 (0.39 to 0.72)", "| LAVP cosine, max | 0.47"),
                        _lavp("l2", "lavp_l2_min", "mostly above 0.5", 0.4, "-0.01 (-0.27 to 0.23)", "| LAVP L2, min | -0.01"),
                        _lavp("cosine", "lavp_cosine_min", "about 0.8", 0.7, "0.15 (-0.11 to 0.38)", "| LAVP cosine, min | 0.09"),
                    ],
                ),
                Run(
                    study="lavp_quality",
                    variant="cifar10",
                    settings={"count": 30, "images": "cifar10.npz"},
                    page=_PAGE,
                    cost="an hour of one core",
                    readings=[
                        _lavp("l2", "lavp_l2_max", "mostly above 0.5", 0.4, "0.00 (-0.23 to 0.23)", "| LAVP L2, max | 0.00"),
                        _lavp("cosine", "lavp_cosine_max", "about 0.8", 0.7, "0.09 (-0.16 to 0.31)", "| LAVP cosine, max | -0"),
                    ],
                ),
                Run(
                    study="lavp_conditions",
                    cost="an hour of one core",
                    whole=False,
                    readings=[
                        Reading(
                            quantity=f"{name}, {loss} attack: Spearman of lavp_{loss}_max with mse",
                            shown=f"lavp_{loss}_max, {name}", paper=paper, rule=Above(least),
                        )
                        for name in ("base", "images: digits", "images: gray", "weights: torch's", "weights: trained")
                        for loss, paper, least in (("l2", "mostly above 0.5", 0.4), ("cosine", "about 0.8", 0.7))
                    ],
                ),
            ],
            note="MNIST, then CIFAR-10, then one thing changed at a time from a LeNet on CIFAR-10 at half of its size.",
        ),
        Item(
            number="table 2",
            says="the same at high resolution",
            lacking="24 pictures of ImageNet are too few, and their 150,528 numbers leave the largest eigenvalues alone.",
            command="gradleak study lavp_quality --out runs/studies --set images=imagenet.npz",
        ),
        Item(
            number="table 3",
            says="the fusion beats the gradient norm for both losses",
            runs=[
                Run(
                    study="lavp_quality",
                    settings={"count": 30},
                    page=_PAGE,
                    readings=[
                        _lavp("l2", "lavp_fusion", _NORM, 0.03, "0.28 (0.01 to 0.50)", "| LAVP fusion | 0.28"),
                        _lavp("cosine", "lavp_fusion", _NORM, 0.12, "0.35 (0.07 to 0.58)", "| LAVP fusion | 0.28"),
                    ],
                ),
                Run(
                    study="lavp_quality",
                    variant="cifar10",
                    settings={"count": 30, "images": "cifar10.npz"},
                    page=_PAGE,
                    readings=[
                        _lavp("l2", "lavp_fusion", _NORM, 0.0, "-0.21 (-0.41 to -0.01)", "| LAVP fusion | -0.21"),
                        _lavp("cosine", "lavp_fusion", _NORM, 0.05, "-0.10 (-0.33 to 0.12)", "| LAVP fusion | -0.21"),
                    ],
                ),
            ],
            note="MNIST, then CIFAR-10.",
        ),
        Item(
            number="figures 2, 3",
            says="the gradient norm has 0.35 by L2 and −0.28 by cosine on CIFAR-10, LAVP one sign",
            runs=[
                Run(
                    study="lavp_quality",
                    settings={"count": 30},
                    page=_PAGE,
                    readings=[
                        Reading(
                            quantity="l2 attack: Spearman of gradient_norm with mse, mean over architectures",
                            shown="gradient norm, l2 attack", paper="0.35", rule=Near(0.35, 0.25),
                            printed="0.03 (-0.15 to 0.19)", where="| gradient norm | 0.03",
                        ),
                        Reading(
                            quantity="cosine attack: Spearman of gradient_norm with mse, mean over architectures",
                            shown="gradient norm, cosine attack", paper="-0.28", rule=Near(-0.28, 0.25),
                            printed="0.12 (-0.10 to 0.30)", where="| gradient norm | 0.03",
                        ),
                    ],
                )
            ],
            lacking="ImageNet (figure 3); scatter plots are among the figures of the study.",
            command="gradleak study lavp_quality --out runs/studies --set images=imagenet.npz",
        ),
        Item(
            number="figures 4 to 6",
            says="pictures ranked by LAVP and by the gradient norm",
            lacking="ImageNette and ImageWoof are not at hand, and no study draws pictures by rank.",
        ),
        Item(
            number="theorem 1",
            says="a step of 1/(2L²) lowers the matching loss by ‖gradient‖²/(4L²) at least",
            runs=[
                Run(
                    study="lavp_descent",
                    cost="five minutes of one core",
                    readings=[
                        Reading(
                            quantity=f"{activation}, {_DESCENT}: share of steps that break the bound",
                            shown=f"steps that break it, {activation}", paper="none", rule=Below(0.0),
                        )
                        for activation in ("sigmoid", "tanh", "relu")
                    ],
                )
            ],
        ),
        Item(
            number="pseudocode of the power iteration",
            says="largest eigenvalue of the Hessian",
            code=[
                Checked(name="gradleak.linalg.block_lanczos", test="tests/linalg/test_block_lanczos.py::test_agrees_with_arpack")
            ],
            note="By block Lanczos, which ends sooner.",
        ),
        Item(
            number="appendix, local optimization",
            says="LAVP goes with the final loss of an attack that starts near the truth",
            runs=[
                Run(
                    study="lavp_descent",
                    readings=[
                        Reading(
                            quantity=f"sigmoid, start {start} from the truth, step size {step}: {_LAST}",
                            shown=f"Spearman, start {start}, step size {step}", paper="correlated", rule=Above(0.0, surely=True),
                        )
                        for step in ("at the truth", "the same for all")
                        for start in ("0.01", "0.1", "0.3")
                    ],
                )
            ],
        ),
    ],
)  # fmt: skip

__all__ = ["HONG"]

"""Items of Zhang et al. 2023: inversion influence functions."""

from gradleak.results import ZHANG_2023
from studies.items.item import Checked, Item, Paper, Reading, Run
from studies.items.rules import Above, Below, Between, Exceeds, Factor, Rule
from studies.items.zhang_2023_formulas import FORMULAS, LIPSCHITZ

_VALIDATION = Run(
    study="influence_validation",
    page="studies.md#does-i2f-predict-the-error",
    readings=[
        Reading(
            quantity="sigmoid: log-log slope, reached on predicted", paper="dots on the diagonal",
            rule=Between(0.9, 1.1), printed="0.9999 (0.9996 to 1.0003)", where="| sigmoid |",
        ),
        Reading(
            quantity="sigmoid: reached error / lower bound, median", paper="the bound is tight",
            rule=Below(3.0), printed="147", where="| sigmoid |",
        ),
        Reading(
            quantity="tanh: log-log slope, reached on predicted", paper="dots on the diagonal",
            rule=Between(0.9, 1.1), printed="1.0000 (0.9999 to 1.0000)", where="| tanh |",
        ),
        Reading(
            quantity="tanh: reached error / lower bound, median", paper="the bound is tight",
            rule=Below(3.0), printed="2,761", where="| tanh |",
        ),
    ],
)  # fmt: skip
_PAGE = "defenses-measured.md"
_DGL, _DEEP = "lenet, mnist, dgl", "resnet18, mnist, dgl"
_PANELS = (
    "lenet, mnist, dgl", "lenet, mnist, gs",
    "linear, mnist, dgl", _DEEP, "resnet18, mnist, gs", "resnet18, cifar10, gs", "linear, cifar10, gs",
)  # fmt: skip


_PAIRS = (
    "MLP, MNIST", "MLP, CIFAR-10", "LeNet, MNIST", "LeNet, CIFAR-10", "ResNet-18, MNIST", "ResNet-18, CIFAR-10",
    "ResNet-34, CIFAR-10", "ResNet-50, CIFAR-10", "ResNet-101, CIFAR-10", "ResNet-152, CIFAR-10", "ResNet-152, ImageNet",
)  # fmt: skip


def _directions(*readings: Reading) -> Run:
    return Run(
        study="influence_directions", cost="ten minutes of one core", whole=False, readings=readings,
    )  # fmt: skip


def _along(setting: str, attack: str, rule: Rule, paper: str) -> Reading:
    quantity = f"{setting}, {attack}: log-log slope of the squared error on 1/λ"
    return Reading(quantity=quantity, shown=f"slope of the squared error, {setting}, {attack}", paper=paper, rule=rule)


def _cost(pair: str, least: float, paper: str) -> Reading:
    quantity = f"{pair}: time of an attack over that of λmax, at the paper's counts"
    return Reading(quantity=quantity, shown=f"attack over bound, {pair}", paper=paper, rule=Above(least))


def _world(*readings: Reading) -> Run:
    """The study of real attacks, of which every item reads its settings."""
    return Run(
        study="influence_in_the_world", settings={"only": "uniform"},
        cost="half an hour of one core", readings=readings, whole=False,
    )  # fmt: skip


def _goes_with(setting: str, predictor: str, score: str, rule: Rule, paper: str) -> Reading:
    quantity = f"{setting}: Spearman of {predictor} and {score}, over everything"
    return Reading(quantity=quantity, shown=f"{setting}, Spearman of {predictor} and {score}", paper=paper, rule=rule)


def _ratio(setting: str, what: str, rule: Rule, paper: str) -> Reading:
    return Reading(quantity=f"{setting}: {what}, median", shown=f"{setting}, {what}", paper=paper, rule=rule)


def _at_least(setting: str, bound: str, rule: Rule, paper: str) -> Reading:
    quantity = f"{setting}: share of attacks whose RMSE is at least {bound}"
    return Reading(quantity=quantity, shown=f"{setting}, share of errors of at least {bound}", paper=paper, rule=rule)


def _order(kind: str, of: str, printed: tuple[str, str]) -> Reading:
    """Kind of initialization whose error is to be at least that of another."""
    quantity = f"{kind}: {of}, pixel RMSE, median"
    return Reading(
        quantity=quantity, shown=f"{of}, {kind}", rule=Exceeds(f"uniform: {of}, pixel RMSE, median", called="uniform"),
        printed=printed[0], where=printed[1],
    )  # fmt: skip


_SCORES: dict[str, Rule] = {
    "ROUGE-L": Below(0.0, surely=True), "Google BLEU": Below(0.0, surely=True), "ROUGE-1": Below(0.0, surely=True),
    "feature MSE": Above(0.0, surely=True),
}  # fmt: skip


def _of_text(network: str, score: str, rule: Rule) -> Reading:
    quantity = f"{network}-like: Spearman of the I²F bound with {score}, over all levels"
    return Reading(quantity=quantity, shown=f"{network}-like, Spearman with {score}", rule=rule)


ZHANG = Paper(
    citation=ZHANG_2023,
    items=[
        *FORMULAS,
        Item(
            number="I_nom (figure 1)",
            says="the numerator ‖Aᵀδ‖ alone is much smaller than I²F",
            code=[
                Checked(
                    name="gradleak.risk.InversionInfluenceNumerator",
                    test="tests/risk/test_influence.py::test_the_numerator_is_the_bound_times_the_largest_eigenvalue",
                )
            ],
            runs=[_world(*(_ratio(one, "I²F / I_nom", Above(3.0), "I_nom is much smaller") for one in (_DEEP, _DGL)))],
        ),
        Item(
            number="figure 1",
            says="I²F, its bound and I_nom against the error; ResNet-18, MNIST, DGL",
            runs=[
                _VALIDATION,
                _world(
                    _goes_with(_DGL, "I²F", "RMSE", Above(0.7), "dots on the diagonal"),
                    _ratio(_DGL, "RMSE / I²F at the smallest noise", Factor(1.0, 3.0), "equal"),
                    _at_least(_DGL, "the bound", Above(0.95), "a lower bound"),
                    _goes_with(_DEEP, "I²F", "RMSE", Above(0.7), "dots on the diagonal"),
                    _ratio(_DEEP, "RMSE / I²F at the smallest noise", Factor(1.0, 3.0), "equal"),
                    _ratio(_DEEP, "I²F / its bound", Below(3.0), "the bound is tight"),
                    _at_least(_DEEP, "the bound", Above(0.95), "a lower bound"),
                ),
            ],
            note="First the perfect attacker on a LeNet, then DGL on it, then DGL on ResNet-18, the paper's own setting.",
        ),
        Item(
            number="figure 2",
            says="I²F works for DGL and GS, MNIST and CIFAR-10, a linear model and ResNet-18",
            runs=[
                _world(
                    *(_goes_with(panel, "its bound", "RMSE", Above(0.5), "close to linear") for panel in _PANELS),
                    *(_at_least(panel, "the bound", Above(0.95), "a lower bound") for panel in _PANELS),
                )
            ],
        ),
        Item(
            number="figure 3",
            says="bound against LPIPS; ResNet-152, ImageNet",
            lacking="`models.resnet(depth=152)` exists; an attack on 224×224 pictures through it takes hours of an accelerator, "
            "and 24 pictures of ImageNet are at hand.",
        ),
        Item(
            number="figures 4, 9",
            says="ROUGE-L, Google BLEU, ROUGE-1 and feature MSE go with the bound; BERT, GPT-2, TAG",
            runs=[
                Run(
                    study="sentence_noise",
                    settings={"text": "wikitext2.txt", "sentences": 70},
                    page="text-noise-measured.md",
                    cost="about an hour of one core",
                    readings=[_of_text(network, score, whole) for network in ("BERT", "GPT") for score, whole in _SCORES.items()],
                )
            ],
            lacking="BERT and GPT-2 themselves: random networks of their kind with 32 channels, 150 iterations.",
            command='gradleak study sentence_noise --out runs/studies --set text=wikitext2.txt --set large=70',
            note="Noise makes most of it: within one level the bound says little on the BERT-like network.",
        ),
        Item(
            number="figure 5",
            says="spectra of AᵀA: few eigenvalues near 1e-2, the largest at least 1; LeNet, MNIST and CIFAR-10",
            runs=[
                _directions(
                    *(
                        reading
                        for data in ("MNIST", "CIFAR-10")
                        for reading in (
                            Reading(
                                quantity=f"lenet, {data}: largest eigenvalue of AᵀA, median", shown=f"largest, {data}",
                                paper="at least 1", rule=Above(1.0),
                            ),
                            Reading(
                                quantity=f"lenet, {data}: smallest eigenvalue of AᵀA, median", shown=f"smallest, {data}",
                                paper="around 1e-2", rule=Factor(1e-2, 10.0),
                            ),
                        )
                    )
                )
            ],
        ),
        Item(
            number="figure 6",
            says="the error goes as 1/λ along an eigenvector",
            runs=[
                Run(
                    study="spectral_noise",
                    page=f"{_PAGE}#spectral-against-isotropic-noise",
                    readings=[
                        Reading(
                            quantity="one direction, predicted RMSE 0.001: factor by I²F", rule=None,
                            printed="26.1 (23.6 to 28.3)", where="5 digits | 1e-3 | 1 |",
                        ),
                        Reading(
                            quantity="one direction, predicted RMSE 0.001: factor by perfect attacker",
                            paper="1/λ", rule=Exceeds("one direction, predicted RMSE 0.001: factor by I²F", 0.9, "I²F"),
                            printed="26.1", where="5 digits | 1e-3 | 1 |",
                        ),
                    ],
                ),
                _directions(
                    _along("lenet, MNIST", "dgl", Between(0.5, 1.5), "close to 1/λ"),
                    _along("lenet, MNIST", "gauss_newton", Between(0.5, 1.5), "close to 1/λ"),
                    _along("lenet, CIFAR-10", "dgl", Above(0.0), "falls with λ, above 1/λ"),
                ),
            ],
            note="The factor is that of the smallest eigenvalue's direction over isotropic noise of the same "
            "norm; three digits, no attack from a random start.",
        ),
        Item(
            number="figure 7",
            says="the same noise protects samples and classes unequally; trained LeNet, MNIST",
            runs=[
                Run(
                    study="unfairness",
                    page=f"{_PAGE}#whom-gaussian-noise-protects",
                    readings=[
                        Reading(
                            quantity="untrained, variance 0.001: expected RMSE, largest over smallest digit",
                            paper="large", rule=Above(2.0), printed="8.7",
                            where="Untrained, the expected error differs",
                        ),
                        Reading(
                            quantity="after 300 steps, variance 0.001: expected RMSE, largest over smallest digit",
                            paper="large", rule=Above(2.0), printed="1,360", where="Training makes the factor",
                        ),
                    ],
                )
            ],
            note="By I²F and Levenberg-Marquardt in place of DGL.",
        ),
        Item(
            number="section 5.2, inequality",
            says="a sample's ‖J‖ bounds how far poisoning it raises the loss",
            code=[
                Checked(
                    name="gradleak.risk.poisoning_amplification",
                    test="tests/risk/test_poisoning.py::test_the_closed_form_of_a_diagonal_map",
                )
            ],
        ),
        Item(
            number="section 5.3, one layer",
            says="J of a one-layer network",
            code=[
                Checked(
                    name="gradleak.risk.one_layer_derivative",
                    test="tests/risk/test_poisoning.py::test_one_layer_is_what_the_operator_computes",
                )
            ],
        ),
        Item(
            number="figure 8",
            says="uniform weights are riskiest, then normal ones; Kaiming and Xavier safer",
            runs=[
                Run(
                    study="initialization",
                    page=f"{_PAGE}#initialization",
                    readings=[
                        Reading(
                            quantity="uniform: expected I²F, pixel RMSE, median", shown="expected I²F, uniform",
                            printed="0.157 (0.109 to 0.632)", where="| uniform(-0.5, 0.5) |",
                        ),
                        _order("normal", "expected I²F", ("0.037 (0.020 to 0.076)", "| N(0, 0.5) |")),
                        _order("kaiming", "expected I²F", ("2.83 (2.26 to 4.33)", "| Kaiming |")),
                        _order("xavier", "expected I²F", ("15.3 (14.7 to 16.4)", "| Xavier |")),
                        Reading(
                            quantity="uniform: InvertingGradients, pixel RMSE, median",
                            shown="InvertingGradients, uniform", printed="0.140", where="| uniform(-0.5, 0.5) |",
                        ),
                        _order("normal", "InvertingGradients", ("0.473", "| N(0, 0.5) |")),
                        _order("kaiming", "InvertingGradients", ("0.321", "| Kaiming |")),
                        _order("xavier", "InvertingGradients", ("0.407", "| Xavier |")),
                    ],
                )
            ],
            lacking="CIFAR-10 and DGL, GS by name.",
            command="gradleak study initialization --out runs/studies --set images=cifar10.npz --set only=uniform",
        ),
        Item(
            number="figure 10",
            says="power iteration ends in 50 steps, the attack in 3,000",
            runs=[
                Run(
                    study="influence_cost", whole=False, cost="two minutes of one core",
                    readings=[
                        Reading(
                            quantity="LeNet, MNIST: time of an attack over that of λmax, at the paper's counts",
                            shown="attack over power iteration, LeNet, MNIST", paper="20", rule=Above(20.0),
                        )
                    ],
                )
            ],
            note="50 steps of power iteration against 3,000 of the attack, both counts as in the paper.",
        ),
        Item(
            number="figure 11",
            says="the bound costs less than the attack for 11 pairs of model and data",
            runs=[
                Run(
                    study="influence_cost", whole=False, cost="two minutes of one core",
                    readings=[
                        _cost(pair, 1.0, "above 1") if number < 6 else _cost(pair, 500.0, "above 500")
                        for number, pair in enumerate(_PAIRS)
                    ],
                )
            ],
            lacking="attacks on ResNet-152; a step on CIFAR-10, beside other work, was 7.92 plain gradients.",
            command="gradleak study influence_cost --out runs/studies "
            "--set 'pairs=[\"ResNet-152, CIFAR-10\", \"ResNet-152, ImageNet\"]'",
            note="Attacks at the paper's 3,000 iterations by the time of a few; its own time ratios depend on its solver.",
        ),
        Item(
            number="figures 12, 13",
            says="pictures by eigenvector; LeNet and ResNet-18, CIFAR-10",
            runs=[
                _directions(
                    _along("lenet, CIFAR-10", "dgl", Above(0.0), "noisier where λ is small"),
                    _along("resnet18, CIFAR-10, means over 2 by 2 pixels", "dgl", Above(0.0), "noisier where λ is small"),
                    _along("resnet18, CIFAR-10, means over 2 by 2 pixels", "gs", Above(0.0), "noisier where λ is small"),
                )
            ],
            note="Pictures by eigenvector are among the figures of the study; a slope is what a rule can test.",
        ),
        Item(
            number="figure 14",
            says="pictures of digits that the same noise protects and does not",
            runs=[
                Run(
                    study="unfairness", variant="pictures",
                    settings={"per_class": 1, "variances": [1e-3], "training_steps": [300]},
                    page="defenses-measured.md#whom-gaussian-noise-protects",
                    cost="four minutes of one core",
                    readings=[
                        Reading(
                            quantity="after 300 steps, variance 0.001: GaussNewton, largest over smallest RMSE of a digit",
                            shown="largest over smallest RMSE of a claim", paper="some legible, some not",
                            rule=Above(2.0),
                        ),
                        Reading(
                            quantity="after 300 steps, variance 0.001: GaussNewton, median pixel RMSE",
                            shown="median RMSE of the claims",
                        ),
                    ],
                )
            ],
            note="The study draws ten digits, one a class, above their claims, from the least protected on; by "
            "Levenberg-Marquardt in place of DGL.",
        ),
        Item(
            number="figure 15",
            says="GS by class and sample; ResNet-18, CIFAR-10",
            runs=[
                _world(
                    Reading(
                        quantity="resnet18, cifar10, gs: largest over smallest RMSE of an image at variance 1e-05",
                        shown="largest over smallest RMSE of an image", paper="large differences", rule=Above(2.0),
                    )
                )
            ],
            note="One image a class; a table of the record has them by class.",
        ),
        Item(
            number="figure 16",
            says="under pruning the bound estimates the error well",
            runs=[
                Run(
                    study="pruning_bound",
                    settings={"count": 2, "ratios": [0.5, 0.9, 0.95, 0.99]},
                    page=f"{_PAGE}#pruning-against-the-lower-bound",
                    readings=[
                        Reading(
                            quantity="gauss_newton, static: Spearman of lower bound and RMSE", paper="a good estimator",
                            rule=Above(0.7), printed="0.90", where="(Spearman 0.90 for",
                        ),
                        Reading(
                            quantity="inverting_gradients, static: Spearman of lower bound and RMSE",
                            paper="a good estimator", rule=Above(0.7), printed="0.98", where="(Spearman 0.90 for",
                        ),
                        Reading(
                            quantity="gauss_newton, static: share of pairs at or above the bound",
                            paper="a lower bound", rule=Above(1.0),
                        ),
                        Reading(
                            quantity="gauss_newton, static: RMSE / lower bound, median", paper="near 1",
                            rule=Factor(1.0, 3.0),
                        ),
                    ],
                )
            ],
            note="By Levenberg-Marquardt and IG in place of DGL and GS.",
        ),
        Item(
            number="figure 17",
            says="SSIM and LPIPS go with the bound",
            runs=[
                _world(
                    *(
                        _goes_with(panel, "its bound", score, rule, paper)
                        for panel in (_DGL, _DEEP, "resnet18, cifar10, gs")
                        for score, rule, paper in (
                            ("SSIM", Below(-0.3), "falls with the bound"), ("ST-LPIPS", Above(0.3), "rises with the bound"),
                        )
                    )
                )
            ],
        ),
        Item(
            number="figure 18",
            says="bound and errors rise over epochs",
            runs=[
                _world(
                    *(
                        Reading(
                            quantity=f"lenet, mnist, dgl, epoch 30: {what} at variance 0.001",
                            shown=f"{what}, after 30 epochs", paper="rises",
                            rule=Exceeds(f"lenet, mnist, dgl: {what} at variance 0.001", called="the start"),
                        )
                        for what in ("median RMSE", "median of the bound")
                    )
                )
            ],
            lacking="ResNet-18 over epochs; LeNet was trained for 30.",
        ),
        Item(
            number="figure 19",
            says="with ε in 1 to 10 I²F and the bound lie below the error; with 0.1 I²F does not",
            runs=[
                _world(
                    *(
                        _at_least(_DGL, f"I²F at ε = {share} of the median λmax", rule, paper)
                        for share, rule, paper in (
                            ("1", Above(0.95), "a lower bound for ε from 1 to 10"),
                            ("0.1", Above(0.95), "a lower bound for ε from 1 to 10"),
                            ("0.001", Below(0.95), "none for ε = 0.1"),
                        )
                    )
                )
            ],
            note="ε as a share of λmax, since its scale is that of the eigenvalues.",
        ),
        Item(
            number="appendix H.1",
            says="μ_L = 0.7192 and 0.5014, μ_J = 3.7e-13 and 1.7e-13 (LeNet; MNIST, CIFAR-10)",
            code=[LIPSCHITZ],
            runs=[
                _directions(
                    *(
                        Reading(
                            quantity=f"lenet, {data}: {name} from 4 points near each image, median", shown=f"{name}, {data}",
                            paper=paper, rule=Factor(float(paper), 10.0),
                        )
                        for data, name, paper in (
                            ("MNIST", "μ_L", "0.7192"), ("MNIST", "μ_J", "3.7e-13"),
                            ("CIFAR-10", "μ_L", "0.5014"), ("CIFAR-10", "μ_J", "1.7e-13"),
                        )
                    )
                )
            ],
        ),
        Item(
            number="appendices H.2, H.3",
            says="GS and priors: the same theory",
            code=[
                Checked(
                    name="gradleak.attacks.GS",
                    test="tests/attacks/inversion/test_presets.py::test_the_settings_of_the_influence_papers_two_attacks",
                ),
                Checked(name="gradleak.LinearizedPosteriorError", test="tests/risk/test_posterior.py::test_reference_values"),
            ],
        ),
    ],
)  # fmt: skip

__all__ = ["ZHANG"]

"""Items of Mo et al. 2021: where in a network gradients leak."""

from gradleak.results import MO_2021
from studies.items.item import Checked, Item, Paper, Reading, Run
from studies.items.rules import Above, Below, Between, Exceeds

_PAGE = "where-it-leaks-measured.md"
_V = "tests/risk/v_information"
_SETTINGS_OF_DIGITS = {
    "networks": ["lenet5"], "side": 28, "sizes": [2], "count": 8, "activation": "tanh", "iterations": 300,
    "total_variation": 0.01, "posterior_images": 1,
}  # fmt: skip
_SETTINGS_OF_CIFAR = {
    "images": "cifar100.npz", "sizes": [2], "count": 6, "block": 6, "iterations": 400, "posterior_images": 1,
}  # fmt: skip
_LATENT = {"speech": "fsdd_600.npz", "text": "cola_dev.tsv", "public_text": "wikitext2.txt"}


def _set(layers: str, rule: Above | Exceeds | None, printed: str, where: str, paper: str = "") -> Reading:
    return Reading(
        quantity=f"lenet5, {layers}: V-information (nats)", shown=f"V of {layers}", paper=paper, rule=rule,
        printed=printed, where=where,
    )  # fmt: skip


def _first(than: str) -> Exceeds:
    return Exceeds(f"lenet5, {than}: V-information (nats)", called=than)


def _influence(leakage: str, words: str, rule: Below | Between | None, printed: str, where: str, paper: str) -> Reading:
    return Reading(
        quantity=f"{leakage} information{words} (nats)", shown=f"{leakage}{words}", paper=paper, rule=rule,
        printed=printed, where=where,
    )  # fmt: skip


def _influences(*readings: Reading) -> Run:
    return Run(
        study="layer_influences", page=f"{_PAGE}#what-changes-it-others-in-the-average-epochs-noise",
        cost="12 minutes of one core", readings=readings,
    )  # fmt: skip


MO = Paper(
    citation=MO_2021,
    items=[
        Item(
            number="equation 1",
            says="DLG",
            code=[
                Checked(
                    name="gradleak.attacks.DLG",
                    test="tests/attacks/inversion/test_presets.py::test_dlg_finds_a_row_and_its_label_together",
                )
            ],
        ),
        Item(
            number="equations 2 to 5",
            says="gradients of linear layers by inputs and errors",
            code=[
                Checked(
                    name="gradleak.GradientJacobian", test="tests/operators/test_ghost_gram.py::test_agrees_with_the_plain_route"
                )
            ],
        ),
        Item(number="table 1, figures 1, 2", says="notation and overviews"),
        Item(
            number="definitions 1, 2, equations 6, 7",
            says="V-information of an attribute",
            code=[
                Checked(
                    name="gradleak.risk.LatentInformation",
                    test=f"{_V}/test_latent_information.py::test_a_planted_linear_attribute_has_the_information_of_two_gaussians",
                ),
                Checked(
                    name="gradleak.risk.LatentInformation",
                    test=f"{_V}/test_latent_information.py::test_an_unbalanced_attribute_has_nothing_but_in_the_terms_of_the_paper",
                ),
            ],
            note="The prior is the attribute's share, not ½.",
        ),
        Item(
            number="equations 8, 9",
            says="V-information of the input by the similarity of a claim",
            code=[
                Checked(
                    name="gradleak.risk.OriginalInformation",
                    test=f"{_V}/test_original_information.py::test_is_the_papers_for_claims_of_known_similarity",
                )
            ],
        ),
        Item(
            number="equations 10, 11",
            says="sensitivity, a norm of A by layer",
            code=[
                Checked(name="gradleak.risk.Sensitivity", test="tests/risk/test_sensitivity.py::test_reference_values"),
                Checked(
                    name="gradleak.risk.mean_sensitivity",
                    test="tests/risk/test_mean_sensitivity.py::test_mean_and_interval_of_known_norms_are_those_of_scipy",
                ),
            ],
        ),
        Item(
            number="equations 12, 13",
            says="distance of subspaces of gradients with and without the attribute",
            code=[
                Checked(
                    name="gradleak.risk.SubspaceDistance",
                    test="tests/risk/test_subspace_distance.py::test_is_that_of_the_leading_directions_by_scipy",
                )
            ],
            note="Of matrices of single gradients; an averaged one spans one direction.",
        ),
        Item(
            number="section 6.1, models",
            says="LeNet, AlexNet, VGG9, TextClf",
            code=[
                Checked(
                    name="gradleak.models.lenet5",
                    test="tests/models/test_lenet5.py::test_logits_and_gradients_are_those_of_its_layers",
                ),
                Checked(
                    name="studies.networks.vgg9",
                    test="tests/studies/networks/test_pooled.py::test_logits_and_gradients_are_those_of_the_layers_of_the_paper",
                ),
                Checked(
                    name="gradleak.models.text_classifier",
                    test="tests/models/test_text_classifier.py::test_gradients_are_those_of_a_lookup_with_padding",
                ),
            ],
        ),
        Item(
            number="table 2",
            says="data, tasks and attributes",
            code=[
                Checked(
                    name="studies.datasets.cifar100",
                    test="tests/studies/datasets/test_cifar100.py::test_images_and_labels_are_those_of_the_records",
                ),
                Checked(
                    name="studies.datasets.speech_digits",
                    test="tests/studies/datasets/test_speech.py::test_the_digits_of_the_bench",
                ),
            ],
            lacking="LFW, CelebA, PubFig, IMDB and CSI are not at hand; digits, CIFAR-100, the census, speech and CoLA are.",
        ),
        Item(
            number="figure 3",
            says="mutual information with inputs and labels is largest in the first layer, at every epoch",
            runs=[
                Run(
                    study="layer_latent",
                    settings=_LATENT,
                    page=f"{_PAGE}#an-attribute-layer-by-layer",
                    cost="12 minutes of one core",
                    readings=[
                        Reading(
                            quantity="cells of 8 in which the first layer has most mutual information with the label",
                            paper="always", rule=Above(8.0), printed="0", where="largest in the first layer in",
                        )
                    ],
                ),
                Run(
                    study="layer_epochs",
                    whole=False,
                    readings=[
                        Reading(
                            quantity=f"deep_mlp: epochs at which the first layer has the largest MI with the {what}, share",
                            shown=f"share of epochs with the first layer first, {what}", paper="always", rule=Above(1.0),
                        )
                        for what in ("inputs", "label")
                    ],
                ),
            ],
            note="First by attribute sets, then over the epochs of an eight-layer perceptron on digits, as in the paper.",
        ),
        Item(
            number="figure 4",
            says="V-information of the input falls from the first layers to the last",
            runs=[
                Run(
                    study="layer_original",
                    variant="tanh",
                    settings=_SETTINGS_OF_DIGITS,
                    page=f"{_PAGE}#digits-the-order-of-the-paper-clearly-behind-smooth-activations-only",
                    cost="2 minutes of one core",
                    readings=[
                        _set("conv1 + conv2", _first("conv2 + fc1"), "17.2 (15.9 to 18.5)", "| `conv1 + conv2` | 2,572", "falls"),
                        _set("conv2 + fc1", _first("fc1 + fc2"), "16.8 (13.0 to 20.7)", "| `conv2 + fc1` | 33,256", "falls"),
                        _set("fc1 + fc2", _first("fc2 + fc3"), "10.6 (7.0 to 14.2)", "| `fc1 + fc2` | 41,004", "falls"),
                        _set("fc2 + fc3", None, "9.9 (6.7 to 13.2)", "| `fc2 + fc3` | 11,014"),
                    ],
                ),
                Run(
                    study="layer_original",
                    variant="cifar100",
                    settings=_SETTINGS_OF_CIFAR,
                    page=f"{_PAGE}#cifar-100-not-the-order-of-the-paper-but-its-correlation",
                    cost="about an hour of one core",
                    readings=[
                        _set("conv1 + conv2", _first("conv2 + fc1"), "4.2 (2.0 to 6.3)", "| `conv1 + conv2` | 4.2", "falls"),
                        _set("conv2 + fc1", _first("fc1 + fc2"), "7.8 (4.5 to 11.1)", "| `conv2 + fc1` | 7.8", "falls"),
                        _set("fc1 + fc2", _first("fc2 + fc3"), "9.0 (5.8 to 12.2)", "| `fc1 + fc2` | 9.0", "falls"),
                        _set("fc2 + fc3", None, "6.9 (4.3 to 9.6)", "| `fc2 + fc3` | 6.9"),
                    ],
                ),
            ],
            note="Digits with tanh, then CIFAR-100 with ReLU, the LeNet of each; faces are not at hand.",
        ),
        Item(
            number="figure 5",
            says="V-information of an attribute is largest at the first fully connected layer",
            runs=[
                Run(
                    study="layer_latent",
                    settings=_LATENT,
                    page=f"{_PAGE}#an-attribute-layer-by-layer",
                    cost="12 minutes of one core",
                    readings=[
                        Reading(
                            quantity="cells of 9 whose leakiest layer is the first fully connected one",
                            paper="always", rule=Above(8.0), printed="1", where="Here that layer is the leakiest in",
                        )
                    ],
                ),
                Run(
                    study="layer_conditions",
                    variant="models",
                    readings=[
                        Reading(
                            quantity=f"{name}: V of the first fully connected layer less that of the leakiest other (nats)",
                            shown=f"of three models, {name}", paper="positive", rule=Above(0.0),
                        )
                        for name in ("base", "attribute: parity")
                    ],
                ),
                Run(
                    study="layer_conditions",
                    whole=False,
                    readings=[
                        Reading(
                            quantity=f"{name}: V of the first fully connected layer less that of the leakiest other (nats)",
                            shown=f"the first fully connected layer less the leakiest other, {name}", paper="positive",
                            rule=Above(0.0),
                        )
                        for name in (
                            "base", "attribute: parity", "training: none", "training: 4 models along it", "batch: 1",
                            "attacker: logistic",
                        )
                    ],
                ),
            ],
            note="Then one thing changed at a time: all cells are in the record.",
        ),
        Item(
            number="figures 6, 8",
            says="sensitivity in three norms has the pattern of figure 4, R = 0.686 to 0.707",
            runs=[
                Run(
                    study="layer_original",
                    variant="cifar100",
                    settings=_SETTINGS_OF_CIFAR,
                    page=f"{_PAGE}#cifar-100-not-the-order-of-the-paper-but-its-correlation",
                    cost="about an hour of one core",
                    readings=[
                        Reading(
                            quantity="sets of 2: frobenius norm: Pearson R, each divided by the network's largest",
                            shown="R, Frobenius norm", paper="0.686 to 0.707", rule=Between(0.5, 1.0),
                            printed="0.84", where="largest of its network as in the paper: R = 0.84",
                        ),
                        Reading(
                            quantity="sets of 2: one norm: Pearson R, each divided by the network's largest",
                            shown="R, 1-norm", paper="0.686 to 0.707", rule=Between(0.5, 1.0), printed="0.83 (0.73 to 0.92)",
                            where="The 1-norm 0.83",
                        ),
                        Reading(
                            quantity="sets of 2: inf norm: Pearson R, each divided by the network's largest",
                            shown="R, ∞-norm", paper="0.686 to 0.707", rule=Between(0.5, 1.0), printed="−0.24",
                            where="the ∞-norm −0.24",
                        ),
                    ],
                )
            ],
        ),
        Item(
            number="figure 7",
            says="subspace distance has the pattern of figure 5, R = 0.686 to 0.707",
            runs=[
                Run(
                    study="layer_latent",
                    settings=_LATENT,
                    page=f"{_PAGE}#an-attribute-layer-by-layer",
                    cost="12 minutes of one core",
                    readings=[
                        Reading(
                            quantity="Pearson of the subspace distance with V-information of the forest, pooled",
                            paper="0.686 to 0.707", rule=Between(0.5, 1.0), printed="−0.17 (−0.51 to 0.23)",
                            where="distance −0.17",
                        )
                    ],
                )
            ],
        ),
        Item(
            number="figure 9",
            says="with 30 others in the average the input's sensitivity is near zero and an attribute hard to tell",
            runs=[
                _influences(
                    _influence("original", ", n = 0", None, "15.7 (13.7 to 17.6)", "| 0 | 15.7 (13.7 to 17.6) | 13.9", ""),
                    _influence("original", ", n = 30", Below(2.0), "5.9 (3.6 to 8.2)", "| 30 | 5.9", "near zero"),
                    _influence("latent", ", n = 0", None, "0.609 (0.584 to 0.634)", "| 0 | 15.7 (13.7 to 17.6) | 13.9", ""),
                    _influence("latent", ", n = 30", Below(0.07), "0.031 (0.004 to 0.058)", "| 30 | 5.9", "hard"),
                )
            ],
            note="The paper's near zero is the sensitivity, 1/(n + 1) of the target's own; ours is V-information of an attack.",
        ),
        Item(
            number="figure 10",
            says="a drop in the first epochs, then no change",
            runs=[
                _influences(
                    _influence("original", ", epoch = 0", None, "15.7 (13.7 to 17.6)", "| 0 | 15.7 (13.7 to 17.6) | 1.1", ""),
                    _influence("original", ", epoch = 10", Below(12.0), "17.5 (15.4 to 19.7)", "| 10 | 17.5", "a drop"),
                    _influence("latent", ", epoch = 0", None, "0.609 (0.584 to 0.634)", "| 0 | 15.7 (13.7 to 17.6) | 1.1", ""),
                    _influence("latent", ", epoch = 20", Below(0.45), "0.622 (0.588 to 0.655)", "| 20 | 16.8", "a drop"),
                    _influence("latent", ", epoch = 50", Between(0.5, 0.7), "0.635 (0.610 to 0.659)", "| 50 | 13.5", "no change"),
                ),
                Run(
                    study="layer_epochs",
                    whole=False,
                    readings=[
                        Reading(
                            quantity=f"{name}: drop of the V of images (nats)", shown=f"drop of V of images, {name}",
                            paper="positive", rule=Above(1.0),
                        )
                        for name in ("base", "noise of 1e-3", "targets not trained on", "tanh", "attack: DLG", "CIFAR-100")
                    ],
                ),
            ],
        ),
        Item(
            number="figure 11",
            says="noise on the first layers protects inputs best, on the last layers attributes",
            runs=[
                _influences(
                    _influence(
                        "original", ", noise on first layers, adaptive attacker, std = 0.1", Below(12.0), "11.1",
                        "| first | adaptive |", "less than without (15.7)",
                    ),
                    _influence(
                        "original", ", noise on last layers, adaptive attacker, std = 0.1", Between(13.0, 18.0), "15.2",
                        "| last | adaptive |", "as without (15.7)",
                    ),
                    _influence(
                        "latent", ", noise on last layers, adaptive attacker, std = 0.1", Below(0.5), "0.613",
                        "| last | adaptive |", "less than without (0.609)",
                    ),
                )
            ],
        ),
    ],
)  # fmt: skip

__all__ = ["MO"]

"""Items of Li et al. 2024: the inference game, defenses, and the audit of an attribute."""

from gradleak.results import LI_2024
from studies.items.item import Checked, Item, Paper, Reading, Run
from studies.items.li_2024_bounds import BOUNDS
from studies.items.rules import Above, Below, Between, Exceeds, Near, Rule, Size

_RISK = "inference-measured.md#undefended"
_SHIELDS = "inference-measured.md#through-defenses"
_GAME = "tests/games/test_game.py"
_INFERENCE = "tests/attacks/inference"


def _risk(*readings: Reading) -> Run:
    return Run(study="inference_risk", page=_RISK, cost="hours of one core, 27 to 160 s a game", readings=readings)


def _shields(*readings: Reading) -> Run:
    return Run(study="inference_defenses", page=_SHIELDS, cost="half an hour of one core", readings=readings)


_ATTRIBUTE = _risk(
    Reading(
        quantity="attribute inference, k = 16: AUROC", paper="0.9991", rule=Near(0.9991, 0.02),
        printed="1.000 (0.978 to 1.000)", where="| attribute (gender) | 16 |",
    ),
    Reading(
        quantity="property inference, k = 16: AUROC", paper="0.9919", rule=Near(0.9919, 0.02),
        printed="0.999 (0.977 to 1.000)", where="| property (gender) | 16 |",
    ),
    Reading(
        quantity="property inference, k = 16: advantage", paper="0.9363", rule=Near(0.9363, 0.05),
        printed="0.934 (0.882 to 0.987)", where="| property (gender) | 16 |",
    ),
    Reading(
        quantity="distribution inference, k = 128: AUROC", paper="0.8848", rule=Near(0.8848, 0.06),
        printed="0.934 (0.923 to 0.944)", where="| proportion of men, 6 bins | 128 |",
    ),
    Reading(
        quantity="user inference, k = 8: AUROC", paper="0.6808 of CREMA-D",
        printed="0.991 (0.841 to 1.000)", where="| user, 45 constructed ones, m = 5 | 8 | 30 users | 5 |",
    ),
)  # fmt: skip


def _knowledge(rows: int, rounds: int) -> str:
    return f"property inference, {rows} public rows, {rounds} rounds: AUROC"


def _known(rows: int, rounds: int, rule: Rule, paper: str) -> Reading:
    return Reading(
        quantity=_knowledge(rows, rounds), shown=f"AUROC of {rows} public rows, {rounds} rounds", paper=paper, rule=rule,
    )  # fmt: skip


LI = Paper(
    citation=LI_2024,
    items=[
        Item(
            number="definition 3.1",
            says="the inference game: one batch, observed rounds, static and adaptive adversaries",
            code=[
                Checked(
                    name="gradleak.games.InferenceGame",
                    test=f"{_GAME}::test_one_batch_is_released_at_every_observed_round",
                ),
                Checked(
                    name="gradleak.games.InferenceGame", test=f"{_GAME}::test_the_scores_are_those_of_the_posteriors_by_hand"
                ),
            ],
        ),
        Item(
            number="games of attributes, properties, distributions, users",
            says="four forms of the game",
            code=[
                Checked(
                    name="gradleak.games.PropertyGame",
                    test=f"{_GAME}::test_trials_are_batches_of_one_value_without_a_row_twice",
                ),
                Checked(name="gradleak.games.AttributeGame", test=f"{_GAME}::test_a_planted_value_is_always_found"),
                Checked(
                    name="gradleak.games.DistributionGame",
                    test="tests/games/test_distribution.py::test_counts_are_the_floor_of_a_uniform_share_of_the_bin",
                ),
                Checked(name="gradleak.games.UserGame", test="tests/games/test_user.py::test_the_users_of_trials_are_strangers"),
            ],
        ),
        Item(
            number="section 4.1, ordinal",
            says="posterior of ordered classes",
            code=[
                Checked(
                    name="gradleak.attacks.OrdinalPosterior",
                    test=f"{_INFERENCE}/test_ordinal.py::test_differences_are_clipped_divided_and_counted",
                )
            ],
        ),
        Item(
            number="section 4.1, prototypes",
            says="posterior of users by distance of embeddings",
            code=[
                Checked(
                    name="gradleak.attacks.distance_log_posterior",
                    test=f"{_INFERENCE}/test_prototype.py::test_distances_are_those_of_scipy",
                )
            ],
            note="The distance is not squared.",
        ),
        Item(
            number="equations 1 to 5",
            says="rounds combined by Bayes' rule",
            code=[
                Checked(
                    name="gradleak.attacks.combine_rounds",
                    test=f"{_INFERENCE}/test_combine_rounds.py::test_it_is_equation_5_of_the_paper_for_posteriors_under_the_prior",
                )
            ],
            note="The prior counts once.",
        ),
        Item(
            number="table 1",
            says="five data sets, and the correlation of label and sensitive variable",
            code=[
                Checked(
                    name="gradleak.datasets.adult_population",
                    test="tests/datasets/test_adult.py::test_rows_are_those_of_the_uci_file",
                ),
                Checked(
                    name="studies.datasets.heritage_health",
                    test="tests/studies/datasets/test_heritage_health.py::test_claims_are_counted_by_member",
                ),
                Checked(
                    name="studies.datasets.celeba",
                    test="tests/studies/datasets/test_faces.py::test_celeba_attributes_identities_and_pixels",
                ),
                Checked(
                    name="studies.datasets.utkface",
                    test="tests/studies/datasets/test_faces.py::test_utkface_reads_age_and_ethnicity_from_the_names",
                ),
                Checked(
                    name="studies.datasets.crema_d", test="tests/studies/datasets/test_speech.py::test_crema_d_in_its_public_form"
                ),
            ],
            runs=[
                Run(
                    study="inference_data",
                    settings={"adult": "adult", "german": "german.data"},
                    readings=[
                        Reading(
                            quantity="Adult, 48,842 rows: correlation of target and sensitive variable",
                            shown="correlation, Adult", paper="-0.1985", rule=Size(-0.1985, 0.02),
                        )
                    ],
                )
            ],
            lacking="Health, CREMA-D, CelebA and UTKFace, whose files are not at hand (loaders run on files in their layout).",
            command="gradleak study inference_data --out runs/studies --set health=FOLDER --set crema_d=FOLDER "
            "--set celeba=FOLDER --set utkface=FOLDER",
        ),
        Item(
            number="metrics",
            says="success rate, AUROC, advantage, TPR at 1 % FPR",
            code=[
                Checked(
                    name="gradleak.scoring.score_posteriors",
                    test="tests/scoring/test_classification.py::test_numbers_are_those_of_scikit_learn",
                )
            ],
        ),
        Item(
            number="figures 2, 11",
            says="all four attacks succeed; Adult, and four other data sets",
            runs=[
                _ATTRIBUTE,
                Run(
                    study="inference_data",
                    settings={"adult": "adult", "german": "german.data"},
                    readings=[
                        Reading(
                            quantity=f"{rows}, {game} inference: AUROC", shown=f"AUROC, {game}, {rows}", paper=paper,
                            rule=Near(float(paper), by),
                        )
                        for rows in ("census, one-hot", "census, standardized codes", "Adult, 48,842 rows")
                        for game, paper, by in (
                            ("attribute", "0.9991", 0.02), ("property", "0.9919", 0.02), ("distribution", "0.8848", 0.04),
                        )
                    ],
                ),
            ],
            lacking="Health, CREMA-D, CelebA and UTKFace, whose files are not at hand; users are constructed ones.",
            command="gradleak study inference_data --out runs/studies --set health=FOLDER --set crema_d=FOLDER "
            "--set celeba=FOLDER --set utkface=FOLDER",
        ),
        Item(
            number="figure 3",
            says="every attack gains from larger batches",
            runs=[
                Run(
                    study="inference_risk", variant="sizes", page=_RISK, cost="hours of one core",
                    readings=[
                        Reading(
                            quantity="property inference, k = 1: AUROC", printed="0.869", where="| property | 1 |",
                        ),
                        Reading(
                            quantity="property inference, k = 4: AUROC", paper="grows",
                            rule=Exceeds("property inference, k = 1: AUROC", called="k = 1"),
                            printed="0.988", where="| property | 4 |",
                        ),
                        Reading(
                            quantity="property inference, k = 64: AUROC", paper="grows",
                            rule=Exceeds("property inference, k = 4: AUROC", called="k = 4"),
                            printed="1.000", where="| property | 64 |",
                        ),
                        Reading(
                            quantity="distribution inference, k = 16: AUROC", printed="0.826", where="3 rounds of 2,000",
                        ),
                        Reading(
                            quantity="distribution inference, k = 64: AUROC", paper="grows",
                            rule=Exceeds("distribution inference, k = 16: AUROC", called="k = 16"),
                            printed="0.899", where="| proportion, likewise | 64 |",
                        ),
                    ],
                )
            ],
        ),
        Item(
            number="figures 4, 13",
            says="model size matters little",
            runs=[
                Run(
                    study="inference_model_size",
                    cost="an hour and a half of one core",
                    readings=[
                        Reading(
                            quantity=f"{game} inference: AUROC at width 4 less that at width 0.25",
                            shown=f"{game}, AUROC of 16 times the width less", paper="about 0", rule=Between(-0.05, 0.05),
                        )
                        for game in ("attribute", "property", "distribution")
                    ],
                )
            ],
            lacking="users, and convolutions: perceptrons on Adult were run.",
            command="gradleak study inference_model_size --out runs/studies --set 'games=[\"user\"]'",
        ),
        Item(
            number="figure 5",
            says="more public rows and more rounds help; with 100 rows ten rounds do not beat five",
            runs=[
                Run(
                    study="inference_knowledge",
                    cost="ten minutes of one core",
                    readings=[
                        _known(100, 10, Near(0.92, 0.05), "about 0.92"),
                        _known(3000, 10, Exceeds(_knowledge(100, 10), called="100 rows"), "grows with rows"),
                        _known(1000, 10, Exceeds(_knowledge(1000, 1), called="one round"), "grows with rounds"),
                        _known(100, 5, Exceeds(_knowledge(100, 10), called="ten rounds"), "ten rounds do not beat five"),
                    ],
                ),
                Run(
                    study="inference_risk", variant="sizes", page=_RISK,
                    readings=[
                        Reading(
                            quantity="property inference, k = 16, 100 public rows: AUROC", paper="about 0.92",
                            rule=Near(0.92, 0.05), printed="0.929", where="| property | 16 | 100 |",
                        ),
                        Reading(
                            quantity="property inference, k = 16, 3000 public rows: AUROC", paper="grows",
                            rule=Exceeds("property inference, k = 16, 100 public rows: AUROC", called="100 rows"),
                            printed="1.000", where="| property | 16 | 3,000 |",
                        ),
                    ],
                )
            ],
            note="First single numbers of public rows, then the grid of rows and rounds.",
        ),
        Item(
            number="definition 6.1",
            says="ε = Δ√(2 ln(1.25/δ))/σ: 96.90 and 6.46",
            code=[
                Checked(
                    name="gradleak.accounting.classical_gaussian_epsilon",
                    test="tests/accounting/test_epsilon.py::test_the_papers_setting_by_the_classical_formula_and_exactly",
                )
            ],
            note="Proven for ε < 1; exact for the same noise is 284.39.",
        ),
        Item(
            number="section 6.1, five defenses",
            says="pruning, signs, adversarial perturbation, bottleneck, DP-SGD",
            code=[
                Checked(name="gradleak.Prune", test="tests/defenses/test_prune.py::test_globally_the_smallest_of_all_entries_go"),
                Checked(name="gradleak.defenses.Sign", test="tests/defenses/test_sign.py::test_the_signs"),
                Checked(
                    name="gradleak.defenses.AdversarialPerturbation",
                    test="tests/defenses/test_adversarial_perturbation.py"
                    "::test_it_is_projected_gradient_ascent_on_the_true_value_or_descent_on_the_target",
                ),
                Checked(
                    name="gradleak.defenses.VariationalBottleneck",
                    test="tests/defenses/test_variational_bottleneck.py::test_the_divergence_is_that_of_two_normal_laws",
                ),
                Checked(
                    name="gradleak.DPSGD",
                    test="tests/defenses/test_dp_sgd.py::test_the_mean_carries_the_noise_of_its_convention",
                ),
            ],
        ),
        Item(
            number="figure 6",
            says="heuristic defenses stop a static adversary and not an adaptive one",
            runs=[
                _shields(
                    Reading(
                        quantity="none, adaptive: advantage", paper="0.9363", rule=Near(0.9363, 0.1),
                        printed="0.973 (0.947 to 0.988)", where="| none |",
                    ),
                    Reading(
                        quantity="pruning 99 %, static: advantage", paper="0", rule=Below(0.1),
                        printed="0.222 (0.009 to 0.642)", where="| pruning, 99 % | static |",
                    ),
                    Reading(
                        quantity="pruning 99 %, adaptive: advantage", paper="0.7841", rule=Near(0.7841, 0.1),
                        printed="0.949 (0.938 to 0.965)", where="| | adaptive | 0.998",
                    ),
                    Reading(
                        quantity="sign, static: advantage", paper="0", rule=Below(0.1),
                        printed="0.208 (0.094 to 0.307)", where="| sign | static |",
                    ),
                    Reading(
                        quantity="sign, adaptive: advantage", paper="ineffective", rule=Above(0.5),
                        printed="0.947 (0.909 to 0.972)", where="| | adaptive | 0.999",
                    ),
                    Reading(
                        quantity="adversarial perturbation, static: advantage", paper="0", rule=Below(0.1),
                        printed="0.198 (0.000 to 0.349)", where="| adversarial perturbation | static |",
                    ),
                    Reading(
                        quantity="adversarial perturbation, adaptive: advantage", paper="1.00", rule=Near(1.0, 0.05),
                        printed="1.000 (1.000 to 1.000)", where="| | adaptive | 1.000 (1.000 to 1.000) | 1.000",
                    ),
                    Reading(
                        quantity="bottleneck, beta 0.01, adaptive: advantage", paper="no better than none",
                        rule=Exceeds("none, adaptive: advantage", 0.9, "no defense"),
                        printed="0.980 (0.954 to 0.996)", where="| bottleneck, β = 0.01 | static |",
                    ),
                )
            ],
            note="One-hot rows; with standardized codes static advantages are 0 to 0.05, as in the paper.",
        ),
        Item(
            number="figure 12",
            says="the same for all four attacks",
            runs=[
                Run(
                    study="inference_defenses",
                    variant="games",
                    whole=False,
                    cost="hours of one core",
                    readings=[
                        *(
                            Reading(
                                quantity=f"{game}: {defense}, adaptive: advantage", shown=f"{game}, {defense}, adaptive",
                                paper="ineffective",
                                rule=Exceeds(f"{game}: none, adaptive: advantage", 0.5, "no defense"),
                            )
                            for game in ("attribute", "distribution")
                            for defense in ("pruning 99 %", "sign", "adversarial perturbation", "bottleneck, beta 0.01")
                        ),
                        *(
                            Reading(
                                quantity=f"{game}: {defense}, static: advantage", shown=f"{game}, {defense}, static",
                                paper="0", rule=Below(0.1),
                            )
                            for game in ("attribute", "distribution")
                            for defense in ("pruning 99 %", "sign", "adversarial perturbation")
                        ),
                    ],
                )
            ],
            lacking="user inference through defenses.",
            command="gradleak study inference_defenses --out runs/studies --set 'games=[\"user\"]'",
        ),
        Item(
            number="figure 7, appendix A.2",
            says="utility against advantage: only DP-SGD protects from an adaptive adversary, at a cost",
            runs=[
                _shields(
                    Reading(
                        quantity="sign, adaptive: advantage", paper="only DP-SGD protects", rule=Above(0.5),
                        printed="0.947 (0.909 to 0.972)", where="| | adaptive | 0.999",
                    ),
                    Reading(
                        quantity="DP-SGD, epsilon 6.46, PCA, adaptive: advantage", paper="protects", rule=Below(0.1),
                        printed="0.000 (0.000 to 0.000)", where="| | adaptive | 0.556",
                    ),
                ),
                Run(
                    study="inference_tradeoff", whole=False,
                    cost="forty minutes of one core",
                    readings=[
                        Reading(
                            quantity=f"{defense}, adaptive: advantage", shown=f"{defense}, adaptive",
                            paper="no meaningful privacy", rule=Exceeds("no defense, adaptive: advantage", 0.5, "no defense"),
                        )
                        for defense in (
                            "pruning, ratio 0.99", "sign", "adversarial perturbation, gamma 0.005", "bottleneck, beta 0.1",
                        )
                    ]
                    + [
                        Reading(
                            quantity="DP-SGD, noise per example, std 0.1, adaptive: advantage",
                            shown="DP-SGD, std 0.1, adaptive", paper="privacy",
                            rule=Below(0.5),
                        ),
                        Reading(
                            quantity="sign, static: advantage", shown="sign, static", paper="0", rule=Below(0.1),
                        ),
                    ],
                ),
            ],
            note="The record of the last readings has three settings a defense, beside the AUROC of the model.",
        ),
        Item(
            number="table 2",
            says="DP-SGD against pooling and PCA",
            runs=[
                _shields(
                    Reading(
                        quantity="DP-SGD, epsilon 96.90, static: AUROC", paper="0.3004", rule=Near(0.3004, 0.15),
                        printed="0.425 (0.393 to 0.447)", where="| DP-SGD, ε = 96.90 a step | static |",
                    ),
                    Reading(
                        quantity="DP-SGD, epsilon 96.90, PCA, adaptive: AUROC", paper="0.9825", rule=Near(0.9825, 0.03),
                        printed="0.984 (0.979 to 0.992)", where="| | adaptive | 0.984",
                    ),
                    Reading(
                        quantity="DP-SGD, epsilon 96.90, PCA, adaptive: advantage", paper="0.8239",
                        rule=Near(0.8239, 0.07), printed="0.799 (0.782 to 0.819)", where="| | adaptive | 0.984",
                    ),
                    Reading(
                        quantity="DP-SGD, epsilon 6.46, PCA, adaptive: AUROC", paper="0.7010", rule=Near(0.7010, 0.06),
                        printed="0.556 (0.547 to 0.567)", where="| | adaptive | 0.556",
                    ),
                    Reading(
                        quantity="DP-SGD, epsilon 6.46, PCA, adaptive: advantage", paper="0.0598",
                        rule=Near(0.0598, 0.06), printed="0.000 (0.000 to 0.000)", where="| | adaptive | 0.556",
                    ),
                )
            ],
            note="With one step a round in place of an epoch the last row is 0.726 and 0.062.",
        ),
        *BOUNDS,
        Item(
            number="table 3",
            says="the convolutional network",
            code=[
                Checked(
                    name="studies.networks.convnet9",
                    test="tests/studies/networks/test_convnet.py::test_nine_convolutions_are_those_of_the_table",
                )
            ],
            note="The 45,922 numbers that the paper states do not fit its table.",
        ),
        Item(
            number="figure 10",
            says="of five classifiers the forest infers best",
            code=[
                Checked(
                    name="gradleak.attacks.RandomForest",
                    test=f"{_INFERENCE}/test_classifiers.py::test_models_are_those_of_scikit_learn",
                )
            ],
            runs=[
                Run(
                    study="inference_adversaries",
                    cost="five minutes of one core",
                    readings=[
                        Reading(
                            quantity=f"attribute inference, k = 1, {form}, random forest, 50 trees: AUROC",
                            shown=f"forest, AUROC, {form}", paper="best",
                            rule=Exceeds(
                                f"attribute inference, k = 1, {form}, {other}: AUROC", called=other,
                            ),
                        )
                        for form in ("one-hot", "standardized codes")
                        for other in (
                            "naive Bayes", "linear discriminant", "quadratic discriminant", "perceptron, 100 units",
                        )
                    ],
                )
            ],
        ),
        Item(number="figure 1", says="overview of the game"),
    ],
)  # fmt: skip

__all__ = ["LI"]

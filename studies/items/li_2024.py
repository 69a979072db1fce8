"""Items of Li et al. 2024: the inference game, defenses, and the audit of an attribute."""

from gradleak.results import LI_2024
from studies.items.item import Checked, Item, Paper, Reading, Run
from studies.items.rules import Above, Below, Exceeds, Near

_RISK = "inference-measured.md#undefended"
_SHIELDS = "inference-measured.md#through-defenses"
_FANO = "tests/games/test_information.py"
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
_AUDIT = "attribute-privacy.md"


def _ratio(clip: str, std: str, paper: str, printed: str, where: str) -> Reading:
    return Reading(
        quantity=f"canary, epoch 0, Δ = {clip}, noise {std}, 5000 trials: (theory/ε̂)/N, plug-in by distance",
        shown=f"ratio at Δ = {clip}, σ = {std}", paper=paper, rule=Near(float(paper), 0.1), printed=printed, where=where,
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
            lacking="the files of Health, CREMA-D, CelebA and UTKFace (loaders run on made ones); the correlations.",
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
            runs=[_ATTRIBUTE],
            lacking="Health, CREMA-D, CelebA and UTKFace, whose files are not at hand; users are constructed ones.",
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
            lacking="no study varies the size yet.",
        ),
        Item(
            number="figure 5",
            says="more public rows and more rounds help",
            runs=[
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
            lacking="the grid of rows and rounds together.",
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
            lacking="attributes, distributions and users through defenses: no study yet.",
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
                )
            ],
            lacking="three settings a defense in one figure of advantage and utility.",
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
        Item(
            number="equation 6",
            says="Fano's bound on an adversary's error",
            code=[
                Checked(
                    name="gradleak.games.fano_error", test=f"{_FANO}::test_it_is_the_smallest_error_of_a_search"
                )
            ],
        ),
        Item(
            number="equations 7, 8",
            says="the same with log 2",
            code=[
                Checked(
                    name="gradleak.games.fano_error", test=f"{_FANO}::test_it_is_sharper_than_the_papers_bound"
                )
            ],
            note="The root of equation 6 takes their place; it is sharper.",
        ),
        Item(
            number="section 6.3, Gaussian channel",
            says="noise bounds what an update tells",
            code=[
                Checked(
                    name="gradleak.games.gaussian_channel_information",
                    test=f"{_FANO}::test_the_bound_holds_for_mixtures_on_a_line",
                )
            ],
            note="With the factor n that the paper's formula lacks.",
        ),
        Item(
            number="definitions 7.1, 7.2",
            says="per-attribute DP, and the audit game",
            code=[
                Checked(
                    name="gradleak.privacy.AttributeAudit",
                    test="tests/privacy/test_audits.py::test_an_attribute_audit_has_a_canary_and_a_random_record_an_epoch",
                )
            ],
        ),
        Item(
            number="section 7, t(g) and ε̂",
            says="statistic and plug-in estimate of epsilon",
            code=[
                Checked(
                    name="gradleak.privacy.PlugInEpsilon",
                    test="tests/privacy/lower_bounds/test_plug_in.py::test_the_value_is_the_paper_s_maximum_by_a_loop",
                )
            ],
            note="An estimate: pure noise looks like a loss.",
        ),
        Item(
            number="section 7, z*, and appendix A.3",
            says="the crafted record",
            code=[
                Checked(
                    name="gradleak.privacy.Canary",
                    test="tests/privacy/test_canary.py::test_crafting_beats_its_starts_and_random_records",
                )
            ],
        ),
        Item(
            number="figure 8",
            says="a crafted record separates better than a random one",
            runs=[
                Run(
                    study="attribute_privacy",
                    settings={"path": "adult"},
                    page=f"{_AUDIT}#a-crafted-record-against-random-ones-figure-8",
                    cost="five minutes of one core",
                    readings=[
                        Reading(
                            quantity="canary, epoch 0: AUROC by distance", paper="more separable",
                            rule=Exceeds("random record, epoch 0: AUROC by distance", called="random records"),
                            printed="0.990", where="| canary, epoch 0 |",
                        ),
                        Reading(
                            quantity="random record, epoch 0: AUROC by distance", shown="random record, the largest",
                            printed="0.663", where="| random, largest, epoch 0 |",
                        ),
                    ],
                )
            ],
        ),
        Item(
            number="figure 9",
            says="theory over estimate, divided by N = 14: 1.14 to 1.86, growing with Δ",
            runs=[
                Run(
                    study="attribute_privacy",
                    settings={"path": "adult"},
                    page=f"{_AUDIT}#epsilon-over-clipping-bound-and-noise-figure-9",
                    readings=[
                        _ratio("1.5", "0.1", "1.14", "0.85", "| 1.5 | 0.1 | 5,000 |"),
                        _ratio("4", "0.1", "1.86", "1.63", "| 4 | 0.1 | 5,000 |"),
                        _ratio("2", "0.08", "1.20", "1.02", "| 2 | 0.08 | 5,000 |"),
                        _ratio("2", "0.13", "1.33", "0.91", "| 2 | 0.13 | 5,000 |"),
                        Reading(
                            quantity="canary, epoch 0, Δ = 4, noise 0.1, 5000 trials: (theory/ε̂)/N, plug-in by distance",
                            shown="growth with Δ", paper="grows",
                            rule=Exceeds(
                                "canary, epoch 0, Δ = 1.5, noise 0.1, 5000 trials: (theory/ε̂)/N, plug-in by distance", 1.2,
                                "Δ = 1.5",
                            ),
                            printed="1.63", where="| 4 | 0.1 | 5,000 |",
                        ),
                    ],
                )
            ],
            note="A stronger canary lowers the level.",
        ),
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
            lacking="all five exist; no study compares them yet.",
        ),
        Item(number="figure 1", says="overview of the game"),
    ],
)  # fmt: skip

__all__ = ["LI"]

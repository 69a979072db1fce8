"""Items of Li et al. 2024: the inference game, attacks and data; defenses, bounds and audits stand in files beside."""

from gradleak.results import LI_2024
from studies.items.item import Checked, Item, Paper, Reading, Run
from studies.items.li_2024_bounds import BOUNDS
from studies.items.li_2024_defenses import DEFENSES
from studies.items.rules import Between, Exceeds, Near, Rule, Size

_RISK = "inference-measured.md#undefended"
_GAME = "tests/games/test_game.py"
_INFERENCE = "tests/attacks/inference"
_LAYOUTS = "tests/studies/datasets/test_published_layouts.py"


def _risk(*readings: Reading) -> Run:
    return Run(study="inference_risk", page=_RISK, cost="hours of one core, 27 to 160 s a game", readings=readings)


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
                *(
                    Checked(name="studies.InferenceData", test=f"{_LAYOUTS}::{test}")
                    for test in (
                        "test_health_and_speech_are_played_from_their_files",
                        "test_faces_are_read_and_played_from_their_files",
                        "test_celebrities_are_played_from_their_files",
                    )
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
            lacking="Health, CREMA-D, CelebA and UTKFace, whose files are not at hand; tests play games on small files in their "
            "published layouts.",
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
        *DEFENSES,
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

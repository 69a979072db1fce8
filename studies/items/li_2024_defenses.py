"""Items of Li et al. 2024 on defenses: definition 6.1, section 6.1, figures 6, 7 and 12, table 2."""

from studies.items.item import Checked, Item, Reading, Run
from studies.items.rules import Above, Below, Exceeds, Near

_SHIELDS = "inference-measured.md#through-defenses"
_HIDING = ("pruning 99 %", "sign", "adversarial perturbation")


def _shields(*readings: Reading) -> Run:
    return Run(study="inference_defenses", page=_SHIELDS, cost="half an hour of one core", readings=readings)


def _games(*readings: Reading) -> Run:
    return Run(study="inference_defenses", variant="games", whole=False, cost="hours of one core", readings=readings)


def _small(variant: str, family: str, value: float, *readings: Reading) -> Run:
    """One setting of a defense at a small size; of DP-SGD, the bottleneck and adversarial perturbation."""
    return Run(
        study="inference_tradeoff",
        variant=variant,
        settings={
            "private_rows": 1000, "trials": 400, "shadow_batches": 400, "rounds": 3, "observed": [0, 2], "seeds": 1,
            "families": [family], "values": [value],
        },
        readings=readings,
    )  # fmt: skip


def _hardly(defense: str) -> Reading:
    """A defense that leaves an adversary who knows it at least half of the advantage without one."""
    return Reading(
        quantity=f"{defense}, adaptive: advantage",
        shown=f"{defense}, adaptive",
        paper="no meaningful privacy",
        rule=Exceeds("no defense, adaptive: advantage", 0.5, "no defense"),
    )


def _played(game: str) -> list[Reading]:
    """Each defense against an adversary that knows it, then those that hide against one that does not."""
    before = f"{game}: " if game else ""
    shown = game or "property"
    return [
        Reading(
            quantity=f"{before}{defense}, adaptive: advantage", shown=f"{shown}, {defense}, adaptive", paper="ineffective",
            rule=Exceeds(f"{before}none, adaptive: advantage", 0.5, "no defense"),
        )
        for defense in (*_HIDING, "bottleneck, beta 0.01")
    ] + [
        Reading(
            quantity=f"{before}{defense}, static: advantage", shown=f"{shown}, {defense}, static", paper="0", rule=Below(0.1),
        )
        for defense in _HIDING
    ]  # fmt: skip


DEFENSES = (
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
            ),
            _games(*_played("")),
        ],
        note="Three seeds at the paper's sizes, then one seed of two rounds with 500 trials; one-hot rows. With standardized "
        "codes static advantages are 0 to 0.05, as in the paper.",
    ),
    Item(
        number="figure 12",
        says="the same for all four attacks",
        runs=[
            _games(*(reading for game in ("attribute", "distribution") for reading in _played(game))),
            Run(
                study="inference_defenses", variant="user", whole=False,
                settings={
                    "private_rows": 1000, "trials": 400, "user_trials": 150, "shadow_batches": 400, "rounds": 1, "seeds": 1,
                    "games": ["user"],
                    "shields": [
                        "none", "pruning 99 %", "sign", "adversarial perturbation", "bottleneck, beta 0.01",
                        "DP-SGD, epsilon 96.90",
                    ],
                },
                readings=_played("user"),
            ),
        ],
        lacking="distribution inference through defenses, and user inference through those that have no value here. The users "
        "are constructed ones, in one round of 150 trials.",
        command="gradleak study inference_defenses --out runs/studies --set 'games=[\"distribution\", \"user\"]'",
        note="One seed of two rounds with 500 trials; the record has DP-SGD of ε = 96.90, too.",
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
                    _hardly("pruning, ratio 0.99"),
                    _hardly("sign"),
                    *(
                        Reading(
                            quantity=f"{defense}, static: advantage", shown=f"{defense}, static", paper="0", rule=Below(0.1),
                        )
                        for defense in ("pruning, ratio 0.99", "sign")
                    ),
                    *(
                        Reading(
                            quantity=f"{defense}: AUROC of the model", shown=f"utility, {defense}", paper=paper,
                        )
                        for defense, paper in (
                            ("no defense", ""), ("pruning, ratio 0.99", ""), ("sign", "no cost"),
                        )
                    ),
                ],
            ),
            _small("adversarial", "adversarial", 0.005, _hardly("adversarial perturbation, gamma 0.005")),
            _small("bottleneck", "bottleneck", 0.1, _hardly("bottleneck, beta 0.1")),
            _small(
                "dp", "dp_sgd_paper", 0.1,
                Reading(
                    quantity="DP-SGD, noise per example, std 0.1, adaptive: advantage", shown="DP-SGD, std 0.1, adaptive",
                    paper="privacy", rule=Below(0.5),
                ),
                Reading(
                    quantity="no defense: AUROC of the model", shown="utility, no defense", paper="above that of DP-SGD",
                    rule=Exceeds("DP-SGD, noise per example, std 0.1: AUROC of the model", called="DP-SGD"),
                ),
                Reading(
                    quantity="DP-SGD, noise per example, std 0.1: AUROC of the model", shown="utility, DP-SGD, std 0.1",
                ),
            ),
        ],
        lacking="the curves of adversarial perturbation, bottleneck and DP-SGD: one value of each was run, after 3 rounds "
        "of training on 1,000 rows, which hardly train the model, so that nothing can cost utility.",
        command="gradleak study inference_tradeoff --out runs/studies "
        "--set 'families=[\"adversarial\", \"bottleneck\", \"dp_sgd_paper\"]'",
        note="The record of pruning and signs has one seed, 3 of 10 rounds and 1,000 trials; the last three have 400 trials.",
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
            ),
            _games(
                Reading(
                    quantity="DP-SGD, epsilon 96.90, static: AUROC", paper="0.3004", rule=Near(0.3004, 0.15),
                ),
                Reading(
                    quantity="DP-SGD, epsilon 96.90, static: advantage", paper="0.0001", rule=Near(0.0001, 0.06),
                ),
                Reading(quantity="DP-SGD, epsilon 96.90, adaptive: AUROC"),
                Reading(quantity="DP-SGD, epsilon 96.90, adaptive: advantage"),
            ),
        ],
        note="With one step a round in place of an epoch the last row of PCA is 0.726 and 0.062. The paper's "
        "row of pooling fits our static adversary, not the adaptive one.",
    ),
)  # fmt: skip

__all__ = ["DEFENSES"]

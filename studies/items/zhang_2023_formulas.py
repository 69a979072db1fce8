"""Items of Zhang et al. 2023 that are formulas, solvers or networks, which tests check."""

from studies.items.item import Checked, Item

_INFLUENCE = Checked(name="gradleak.InversionInfluence", test="tests/risk/test_influence.py::test_reference_values")
_BOUND = Checked(
    name="gradleak.risk.InversionInfluenceLowerBound",
    test="tests/risk/test_influence.py::test_the_lower_bound_stays_below_with_a_loose_eigenvalue",
)
_GAUSSIAN = Checked(
    name="gradleak.risk.GaussianReconstructionError", test="tests/risk/test_cramer_rao.py::test_reference_values"
)
LIPSCHITZ = Checked(
    name="gradleak.risk.LipschitzBound", test="tests/risk/test_lipschitz_bound.py::test_one_unknown_in_closed_form"
)

FORMULAS = (
    Item(
        number="equation 1",
        says="loss of the inversion: squared distance of gradients",
        code=[
            Checked(
                name="gradleak.attacks.SquaredError",
                test="tests/attacks/inversion/test_matching.py::test_squared_error_is_the_relative_squared_residual",
            ),
            Checked(
                name="gradleak.attacks.DGL",
                test="tests/attacks/inversion/test_presets.py::test_the_settings_of_the_influence_papers_two_attacks",
            ),
        ],
        note="Relative to the update's norm, which changes no minimizer.",
    ),
    Item(
        number="equation 2",
        says="error of recovery of a perturbed gradient",
        code=[
            Checked(
                name="gradleak.risk.perfect_attacker",
                test="tests/risk/test_perfect_attacker.py::test_is_the_minimizer_that_scipy_finds",
            )
        ],
    ),
    Item(
        number="equations 3, 4",
        says="I²F, ‖(AᵀA)⁻¹Aᵀδ‖",
        code=[_INFLUENCE],
    ),
    Item(number="equation 5", says="lower bound ‖Aᵀδ‖/λmax of I²F", code=[_BOUND]),
    Item(
        number="section 4, ε",
        says="(AᵀA + εI)⁻¹ where AᵀA is singular",
        code=[
            Checked(
                name="gradleak.InversionInfluence",
                test="tests/risk/test_influence.py::test_reference_values_without_a_spectrum",
            )
        ],
    ),
    Item(
        number="equation 6",
        says="expected squared error σ² Σ 1/λ under Gaussian noise",
        code=[
            _GAUSSIAN,
            Checked(
                name="gradleak.risk.GaussianReconstructionError",
                test="tests/risk/test_cramer_rao.py::test_is_the_mean_of_squared_influence_over_the_noise",
            ),
        ],
        note="The sum runs over the nonzero eigenvalues, those of AᵀA.",
    ),
    Item(
        number="equation 7, theorems 3.1, B.1",
        says="lower bound of the error for a δ that is not small",
        code=[LIPSCHITZ],
        note="An estimate: sampled Lipschitz constants are too small, which makes the bound too large.",
    ),
    Item(
        number="assumptions 3.1 to 3.5, lemmas B.1 to B.3, equations 8 to 12",
        says="what the proofs use",
        code=[
            Checked(
                name="gradleak.risk.LipschitzBound",
                test="tests/risk/test_lipschitz_bound.py"
                "::test_the_weaker_form_holds_where_the_perturbed_release_is_not_attainable",
            )
        ],
        note="Theorem 3.1 takes g₀ + δ to be a gradient of some input; the weaker form that does not is checked.",
    ),
    Item(
        number="appendix A.1",
        says="solvers: conjugate gradients, Neumann series, least squares by descent",
        code=[
            Checked(
                name="gradleak.linalg.ConjugateGradient",
                test="tests/risk/test_influence.py::test_every_solver_gives_the_reference_value",
            ),
            Checked(
                name="gradleak.linalg.NeumannSeries",
                test="tests/linalg/test_neumann.py::test_partial_sums_are_those_of_the_paper",
            ),
            Checked(
                name="gradleak.linalg.LeastSquaresDescent",
                test="tests/linalg/test_gradient_descent.py::test_agrees_with_numpy_least_squares",
            ),
        ],
    ),
    Item(
        number="appendix table 1",
        says="the LeNet",
        code=[
            Checked(
                name="gradleak.models.lenet_i2f",
                test="tests/models/test_lenet.py::test_i2f_computes_the_gradient_of_the_reference",
            )
        ],
    ),
)  # fmt: skip

__all__ = ["FORMULAS", "LIPSCHITZ"]

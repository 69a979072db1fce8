"""Items of Li et al. 2024 on bounds and audits: equations 6 to 8, section 6.3, definitions 7.1 and 7.2, figures 8 and 9."""

from studies.items.item import Checked, Item, Reading, Run
from studies.items.rules import Exceeds, Near

_FANO = "tests/games/test_information.py"
_AUDIT = "attribute-privacy.md"


def _ratio(clip: str, std: str, paper: str, printed: str, where: str) -> Reading:
    return Reading(
        quantity=f"canary, epoch 0, Δ = {clip}, noise {std}, 5000 trials: (theory/ε̂)/N, plug-in by distance",
        shown=f"ratio at Δ = {clip}, σ = {std}", paper=paper, rule=Near(float(paper), 0.1), printed=printed, where=where,
    )  # fmt: skip


BOUNDS = (
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
)  # fmt: skip

__all__ = ["BOUNDS"]

"""The vocabulary of what came out: outcomes, scores, verdicts, citations, records and errors. Imports no torch."""

from gradleak.results.citation import (
    ABADI_2016,
    FANG_2024,
    GEIPING_2020,
    HANNUN_2021,
    HONG_2024,
    LEVENBERG_MARQUARDT,
    WANG_2004,
    ZHANG_2023,
    ZHAO_2020,
    ZHU_2019,
    Citation,
)
from gradleak.results.errors import (
    GradleakError,
    InconsistentUpdateError,
    InputError,
    KnowledgeError,
    PlanError,
    UnsupportedError,
)
from gradleak.results.outcome import Outcome
from gradleak.results.record import Record, RecordWriter
from gradleak.results.score import Evidence, Leakier, Score
from gradleak.results.verdict import Verdict, VerdictKind

__all__ = [
    "ABADI_2016",
    "FANG_2024",
    "GEIPING_2020",
    "HANNUN_2021",
    "HONG_2024",
    "LEVENBERG_MARQUARDT",
    "WANG_2004",
    "ZHANG_2023",
    "ZHAO_2020",
    "ZHU_2019",
    "Citation",
    "Evidence",
    "GradleakError",
    "InconsistentUpdateError",
    "InputError",
    "KnowledgeError",
    "Leakier",
    "Outcome",
    "PlanError",
    "Record",
    "RecordWriter",
    "Score",
    "UnsupportedError",
    "Verdict",
    "VerdictKind",
]

"""Studies: a paper's table or figure, computed again, with the paper's value beside ours."""

from gradleak.studies.attack_table import AttackTable, Entrant, TableNetwork
from gradleak.studies.fed_avg_quality import FedAvgQuality
from gradleak.studies.influence_validation import InfluenceValidation
from gradleak.studies.label_restoration import LabelRestoration, Network
from gradleak.studies.lavp_quality import Architecture, LAVPQuality
from gradleak.studies.study import Finding, Study, StudyResult, Table

__all__ = [
    "Architecture",
    "AttackTable",
    "Entrant",
    "FedAvgQuality",
    "Finding",
    "InfluenceValidation",
    "LAVPQuality",
    "LabelRestoration",
    "Network",
    "Study",
    "StudyResult",
    "Table",
    "TableNetwork",
]

"""Studies: a paper's table or figure, computed again, with the paper's value beside ours."""

from gradleak.studies.influence_validation import InfluenceValidation
from gradleak.studies.lavp_quality import Architecture, LAVPQuality
from gradleak.studies.study import Finding, Study, StudyResult

__all__ = ["Architecture", "Finding", "InfluenceValidation", "LAVPQuality", "Study", "StudyResult"]

"""What rooms and corridor share: the nouns of an audit and what several kinds need."""

from gradleak.audits.base.adversary import Adversary
from gradleak.audits.base.audit import Audit, Refusal, Task
from gradleak.audits.base.pictures import file_name, save_picture
from gradleak.audits.base.reader import Reader
from gradleak.audits.base.site import (
    Controls,
    PerfectAttackerRule,
    Scenario,
    Site,
    attack_generator,
    domain_of,
    internal_example,
    unknown,
)

__all__ = [
    "Adversary",
    "Audit",
    "Controls",
    "PerfectAttackerRule",
    "Reader",
    "Refusal",
    "Scenario",
    "Site",
    "Task",
    "attack_generator",
    "domain_of",
    "file_name",
    "internal_example",
    "save_picture",
    "unknown",
]

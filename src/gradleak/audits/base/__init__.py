"""Nouns of an audit, shared by rooms and corridor, and what several kinds need."""

from gradleak.audits.base.adversary import Adversary
from gradleak.audits.base.audit import Audit, InPieces, Refusal, Task
from gradleak.audits.base.pictures import STATES, file_name, save_picture, save_text, state_of, state_path
from gradleak.audits.base.reader import (
    ALL_OR_NAMES,
    TEXT,
    TEXTS,
    Reader,
    Schema,
    Writer,
    check_name,
    chosen_scenarios,
    list_of,
    table_of,
    tables_of,
    typed,
)
from gradleak.audits.base.rows import luck
from gradleak.audits.base.site import (
    SEED,
    Controls,
    PerfectAttackerRule,
    Scenario,
    Site,
    attack_generator,
    domain_of,
    internal_example,
    released_by,
    unknown,
)

__all__ = [
    "ALL_OR_NAMES",
    "SEED",
    "STATES",
    "TEXT",
    "TEXTS",
    "Adversary",
    "Audit",
    "Controls",
    "InPieces",
    "PerfectAttackerRule",
    "Reader",
    "Refusal",
    "Scenario",
    "Schema",
    "Site",
    "Task",
    "Writer",
    "attack_generator",
    "check_name",
    "chosen_scenarios",
    "domain_of",
    "file_name",
    "internal_example",
    "list_of",
    "luck",
    "released_by",
    "save_picture",
    "save_text",
    "state_of",
    "state_path",
    "table_of",
    "tables_of",
    "typed",
    "unknown",
]

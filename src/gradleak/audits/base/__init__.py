"""Nouns of an audit, shared by rooms and corridor, and what several kinds need."""

from gradleak.audits.base.adversary import Adversary
from gradleak.audits.base.audit import Audit, Refusal, Task
from gradleak.audits.base.luck import luck
from gradleak.audits.base.pictures import file_name, save_picture
from gradleak.audits.base.reader import Reader
from gradleak.audits.base.schema import ALL_OR_NAMES, TEXT, TEXTS, Schema, Writer
from gradleak.audits.base.site import (
    SEED,
    Controls,
    PerfectAttackerRule,
    Scenario,
    Site,
    attack_generator,
    domain_of,
    internal_example,
    unknown,
)
from gradleak.audits.base.states import STATES, state_of, state_path
from gradleak.audits.base.values import check_name, chosen_scenarios, list_of, table_of, tables_of, typed

__all__ = [
    "ALL_OR_NAMES",
    "SEED",
    "STATES",
    "TEXT",
    "TEXTS",
    "Adversary",
    "Audit",
    "Controls",
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
    "save_picture",
    "state_of",
    "state_path",
    "table_of",
    "tables_of",
    "typed",
    "unknown",
]

"""The corridor: plans, their files, the executor that turns a plan into a record, and verdicts. Knows no kind of audit."""

from gradleak.auditing.api import AuditOptions, audit
from gradleak.auditing.budget import Budget
from gradleak.auditing.catalog import Entry, catalog
from gradleak.auditing.cautions import cautions
from gradleak.auditing.default_plan import default_plan
from gradleak.auditing.device import device_of
from gradleak.auditing.executor import Executor, Loky
from gradleak.auditing.generator_file import train_generator
from gradleak.auditing.leak_gate import Decision, Gate, OnLeak
from gradleak.auditing.merge import merge_shards
from gradleak.auditing.plan import Plan
from gradleak.auditing.plan_file import build_plan, load_plan
from gradleak.auditing.plan_reader import configure
from gradleak.auditing.run import estimate, run_plan, tasks
from gradleak.auditing.sent import load_updates, with_updates
from gradleak.auditing.shard import Shard
from gradleak.auditing.verdicts import judge, record_of
from gradleak.audits.base import (
    Adversary,
    Audit,
    Controls,
    PerfectAttackerRule,
    Refusal,
    Scenario,
    Site,
    Task,
    attack_generator,
)
from gradleak.results import Thresholds

__all__ = [
    "Adversary",
    "Audit",
    "AuditOptions",
    "Budget",
    "Controls",
    "Decision",
    "Entry",
    "Executor",
    "Gate",
    "Loky",
    "OnLeak",
    "PerfectAttackerRule",
    "Plan",
    "Refusal",
    "Scenario",
    "Shard",
    "Site",
    "Task",
    "Thresholds",
    "attack_generator",
    "audit",
    "build_plan",
    "catalog",
    "cautions",
    "configure",
    "default_plan",
    "device_of",
    "estimate",
    "judge",
    "load_plan",
    "load_updates",
    "merge_shards",
    "record_of",
    "run_plan",
    "tasks",
    "train_generator",
    "with_updates",
]

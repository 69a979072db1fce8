"""Plans, controls, the consistency gate, verdicts, and the executor that turns a plan into a record."""

from gradleak.auditing.adversary import Adversary
from gradleak.auditing.api import AuditOptions, audit
from gradleak.auditing.catalog import Entry, catalog
from gradleak.auditing.data_range import range_notes
from gradleak.auditing.game_record import record_games
from gradleak.auditing.gate import GateResult, GateStatus, check_update
from gradleak.auditing.generator_file import train_generator
from gradleak.auditing.layer_audit import LayerAudit
from gradleak.auditing.layer_record import LayerProfiles, profile_layers, record_layers
from gradleak.auditing.layer_rows import Told
from gradleak.auditing.plan import Controls, PerfectAttackerRule, Plan, Scenario, default_plan
from gradleak.auditing.plan_file import build_plan, configure, load_plan
from gradleak.auditing.refusals import Refusal, refusals
from gradleak.auditing.run import estimate, run_plan
from gradleak.auditing.tasks import attack_generator
from gradleak.auditing.verdict import Thresholds, judge

__all__ = [
    "Adversary",
    "AuditOptions",
    "Controls",
    "Entry",
    "GateResult",
    "GateStatus",
    "LayerAudit",
    "LayerProfiles",
    "PerfectAttackerRule",
    "Plan",
    "Refusal",
    "Scenario",
    "Thresholds",
    "Told",
    "attack_generator",
    "audit",
    "build_plan",
    "catalog",
    "check_update",
    "configure",
    "default_plan",
    "estimate",
    "judge",
    "load_plan",
    "profile_layers",
    "range_notes",
    "record_games",
    "record_layers",
    "refusals",
    "run_plan",
    "train_generator",
]

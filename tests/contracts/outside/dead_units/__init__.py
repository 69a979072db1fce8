"""A kind of audit of another package: counts the shared tensors' entries that are zero, unit by unit."""

from gradleak.results import Kind

KIND = Kind(
    name="dead_units",
    finding="dead_units.finding:DeadUnitsFinding",
    audit="dead_units.audit:DeadUnitsAudit",
    page="dead_units.page:page",
)

"""Claims for the release of a scenario: the plan's, else those that the noise of the release proves."""

from __future__ import annotations

from gradleak.accounting import delta_caution, mechanism_of, pld_epsilon
from gradleak.audits.privacy.trials import Hypotheses
from gradleak.core import Adjacency, NoGuarantee, Objective, Release, Unit
from gradleak.privacy import AttributeAudit, MembershipAudit
from gradleak.results import GradleakError
from gradleak.results.findings.privacy import Claim


def claim_of(hypotheses: Hypotheses, release: Release, objective: Objective, stated: float | None = None) -> Claim:
    """The claim for one release.

    An attribute is one record in place of another; the presence of an example is what the audit takes for it. A δ that
    is not below one over the private rows proves nothing.

    Args:
        hypotheses: what is told apart.
        release: protocol and defenses.
        objective: the client's loss; its shapes say which layer carries which noise.
        stated: the epsilon of the plan, or None.
    """
    delta = hypotheses.delta
    caution = delta_caution(delta, hypotheses.rows or 1, "private row")
    if stated is not None:
        return Claim(epsilon=stated, delta=delta, of="; ".join(filter(None, ("as the plan states", caution))))
    if isinstance(hypotheses.audit, MembershipAudit):
        adjacency = Adjacency(hypotheses.audit.adjacency)
    elif isinstance(hypotheses.audit, AttributeAudit):
        adjacency = Adjacency.REPLACE
    else:
        reason = "the plan states no claimed_epsilon, and what differs between the two hypotheses is not known"
        return Claim(delta=delta, reason=reason)
    try:
        found = mechanism_of(release, objective, hypotheses.examples)
    except GradleakError as refusal:
        return Claim(delta=delta, reason=str(refusal))
    if isinstance(found, NoGuarantee):
        return Claim(delta=delta, reason=found.reason)
    # Who hides a whole client hides another example in its update, as one update in place of another.
    adjacency = Adjacency.REPLACE if found.unit is Unit.CLIENT else adjacency
    epsilon = pld_epsilon(found, delta=delta, adjacency=adjacency)
    if epsilon.value is None:
        return Claim(delta=delta, reason=epsilon.note)
    what = "an update" if found.unit is Unit.CLIENT else "a record"
    of = f"{what} {'replaced' if adjacency is Adjacency.REPLACE else 'there or not'}, by the noise of one release"
    counted = found.fixed or adjacency is Adjacency.REPLACE
    of += "" if counted else ", as if divisor and noise did not tell how many there are"
    of += f"; {caution}" if caution else ""
    return Claim(epsilon=epsilon.value, delta=delta, of=of, proven=counted and not caution)

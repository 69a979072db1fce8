"""What every exported audit of epsilon promises; a new one is found by itself and needs one example below."""

from __future__ import annotations

import dataclasses
import inspect
import json
from abc import ABC

import pytest
import torch
from tests.games.setting import population
from tests.privacy.setting import dp_sgd, small, table
from torch import nn

import gradleak.privacy
from gradleak.audits.privacy import finding_of_audit
from gradleak.privacy import AttributeAudit, AuditResult, MembershipAudit, PrivacyAudit
from gradleak.results import Citation, Evidence, Outcome, Score
from gradleak.results.findings.privacy import PrivacyFinding


def _linear(generator: torch.Generator) -> nn.Module:
    model = nn.utils.skip_init(nn.Linear, 6, 2)
    nn.init.normal_(model.weight, generator=generator)
    nn.init.zeros_(model.bias)
    return model


EXAMPLES: dict[type[PrivacyAudit], PrivacyAudit] = {
    AttributeAudit: AttributeAudit(table(), **small(epochs=(0,), trials=400)),
    MembershipAudit: MembershipAudit(
        population(rows=200),
        model=_linear,
        release=dp_sgd(noise="sum"),
        members=3,
        epochs=(0,),
        private_rows=50,
        public_rows=50,
        trials=400,
    ),
}
EXPORTED = [
    kind
    for name in gradleak.privacy.__all__
    if inspect.isclass(kind := getattr(gradleak.privacy, name))
    and issubclass(kind, PrivacyAudit)
    and ABC not in kind.__bases__
]
each_audit = pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)


def _bounds(result: AuditResult) -> list[Score]:
    every = [score for pair in result.pairs for scores in pair.scores.values() for score in scores]
    return [score for score in every if score.evidence is Evidence.LOWER_BOUND]


def test_every_exported_audit_has_an_example() -> None:
    assert set(EXPORTED) == set(EXAMPLES)


@each_audit
def test_it_is_frozen_cited_and_described(kind: type[PrivacyAudit]) -> None:
    audit = EXAMPLES[kind]
    with pytest.raises(dataclasses.FrozenInstanceError):
        audit.trials = 1  # type: ignore[misc]
    assert audit.citations
    assert all(isinstance(citation, Citation) for citation in audit.citations)
    described = audit.describe()
    assert described["use"] == kind.__name__
    assert json.dumps(described)
    parameters = list(inspect.signature(kind).parameters.values())
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters[1:])


@each_audit
def test_the_same_seed_gives_the_same_finding_whatever_the_global_generator(kind: type[PrivacyAudit]) -> None:
    def found() -> PrivacyFinding:
        made = finding_of_audit(EXAMPLES[kind].play(4))
        return made.but(seconds=0.0, pairs=tuple(pair.but(seconds=0.0, facts={}) for pair in made.pairs))

    before = torch.random.get_rng_state()
    one = found()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one == found()


@each_audit
def test_no_bound_exceeds_what_is_known_exactly(kind: type[PrivacyAudit]) -> None:
    for pair in EXAMPLES[kind].play(5).pairs:
        known = [score for score in pair.theory if score.evidence is Evidence.EXACT and score.value is not None]
        exact = next((s for s in known if s.name in ("per_attribute_epsilon", "pair_epsilon")), None)
        if exact is None:
            continue
        for scores in pair.scores.values():
            for score in scores:
                assert score.evidence is not Evidence.LOWER_BOUND or (score.value or 0.0) <= (exact.value or 0.0)


@each_audit
def test_controls_find_nothing_and_everything(kind: type[PrivacyAudit]) -> None:
    nothing, everything = EXAMPLES[kind].null_control(6), EXAMPLES[kind].planted_control(6)
    assert {score.value for score in _bounds(nothing)} == {0.0}
    assert {score.outcome for score in _bounds(everything)} == {Outcome.SATURATED}

"""The updates of the clients as an audit, and its task: a release, its baseline, and whether it fits its setting."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from gradleak.accounting import guarantee_of
from gradleak.audits.base import (
    Audit,
    Reader,
    Scenario,
    Schema,
    Site,
    Task,
    Writer,
    domain_of,
    file_name,
    internal_example,
    luck,
    released_by,
    save_picture,
    save_text,
)
from gradleak.audits.released.gate import check_update, in_words
from gradleak.audits.released.verdict import judge
from gradleak.core import (
    DiagonalGaussian,
    HonestButCurious,
    Update,
    computed_in_half,
    describe,
    out_of_scale,
    whole_precision,
)
from gradleak.results import Finding, Grounds, Score, Verdict
from gradleak.results.files import make_folder
from gradleak.results.findings.released import ReleaseFinding, TensorPrecision, UpdatePrecision
from gradleak.results.score import jsonable
from gradleak.scoring import blind_scores


@dataclass(frozen=True, kw_only=True)
class ReleaseTask:
    """The releases of one batch.

    Attributes:
        audit: the name of its audit.
        index: of the batch.
        scenarios: names of those that release it.
    """

    audit: str
    index: int
    scenarios: Sequence[str]

    def __call__(self, site: Site, out: Path) -> list[ReleaseFinding]:
        """A finding for every scenario that releases this batch."""
        batch, name = site.batches[self.index], internal_example(self.index)
        original = None
        if site.pictures:
            name_of_file, domain = f"{name} original", domain_of(batch)
            original = save_picture(out, name_of_file, batch.inputs, domain) or save_text(out, name_of_file, batch)
        chance = luck(site, batch, name)
        return [
            self._release(site, scenario, original, [] if chance is None else [chance], out)
            for scenario in map(site.scenario, self.scenarios)
        ]

    def _release(
        self, site: Site, scenario: Scenario, original: str | None, chance: Sequence[Score], out: Path
    ) -> ReleaseFinding:
        started = time.perf_counter()
        update = site.released(scenario, self.index)
        batch, domain = site.batches[self.index], site.domain(self.index)
        item = f"{scenario.name}/{internal_example(self.index)}"
        knowledge = site.knowledge(scenario, self.index)
        given = scenario.updates.get(self.index)
        # What kind the client calls it can only be named as a cause.
        as_sent = update if given is None else replace(update, kind=given.kind.read_as)
        gate = check_update(site.objective, scenario.release, batch, as_sent)
        noise = scenario.release.noise(site.objective, examples=batch.size)
        std = noise.level if isinstance(noise, DiagonalGaussian) else None
        saved = None
        if site.save_updates:
            make_folder(out / "updates")
            saved = f"updates/{file_name(item)}.safetensors"
            update.save(out / saved)
        with torch.no_grad():
            loss = float(site.objective.loss(site.objective.params, batch.to(site.objective.dtype)))
        seconds = time.perf_counter() - started
        public = site.threat.public if isinstance(site.threat, HonestButCurious) else None
        rows = None if public is None else public.inputs
        baseline = blind_scores(batch, domain, rows, beside=site.beside)
        return ReleaseFinding(
            item=item,
            audit=self.audit,
            scenario=scenario.name,
            subject=site.subject(self.index),
            seconds=seconds,
            note=scenario.release.protocol.note(batch.size),
            scores=(*baseline, *chance),
            knowledge=jsonable(knowledge.card()),
            release=jsonable(scenario.release.describe()),
            defenses=tuple(
                jsonable({**describe(defense), "guarantee": defense.guarantee.value, "stage": defense.stage.value})
                for defense in scenario.release.defenses
            ),
            guarantee=guarantee_of(scenario.release, site.objective, batch.size),
            noise_std=std,
            noise_rms=0.0 if noise is None else noise.rms(site.objective.params),
            gate=gate.part(),
            given=given is not None,
            zero_tensors=tuple(update.zero_tensors()),
            precision=precision_of(update),
            alignment=update.alignment,
            batch_size=batch.size,
            client_loss=float(f"{loss:.1e}"),
            dtype=describe(site.objective.dtype),
            loss_name=site.objective.loss_name,
            picture=original,
            update=saved,
            domain_guessed=site.domain_guessed,
            domain_kind=domain.kind.value,
            range_note=baseline[0].note,
            model_note=out_of_scale(site.objective, batch.inputs),
        )


def precision_of(update: Update) -> UpdatePrecision:
    """Effects of the number formats of an update on it: shares over all entries, and by tensor."""
    parts = update.precision()
    made_in = computed_in_half(update.tensors.values())
    return UpdatePrecision(
        **asdict(whole_precision(parts)),
        made_in=None if made_in is None else describe(made_in),
        tensors={
            name: TensorPrecision(**asdict(part)) for name, part in parts.items() if part.flushed or part.non_finite
        },
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseAudit(Audit[ReleaseFinding]):
    """Releases for every batch of the plan; it has no table in a plan file."""

    kind: ClassVar[str] = "released"
    finding: ClassVar[type[Finding]] = ReleaseFinding

    name: str = "released"

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """Nothing of its own: it reads the section `[data]`, which is the plan's."""
        return {}

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """One audit if the plan has batches."""
        if reader.site.batches:
            yield cls()

    def opening(self, site: Site) -> Iterable[str]:
        """Agreement of every update that was really sent with what the plan would have sent, and how its names were read."""
        for scenario in site.scenarios:
            for index, given in scenario.updates.items():
                update = replace(site.released(scenario, index), kind=given.kind)
                gate = check_update(site.objective, scenario.release, site.batches[index], update)
                yield f"{scenario.name}, {site.subject(index)}: the update is {in_words(gate)}"
                yield from (f"  {note}" for note in update.alignment)

    def tasks(self, site: Site) -> Iterable[Task[ReleaseFinding]]:
        """One task a batch, over all scenarios."""
        chosen = [scenario for scenario in site.scenarios if self.against(scenario.name)]
        for index, here in released_by(chosen).items():
            name = f"release/{internal_example(index)}"
            yield Task(
                name=name,
                run=ReleaseTask(audit=self.name, index=index, scenarios=[scenario.name for scenario in here]),
                blank=ReleaseFinding(item=name, audit=self.name, subject=site.subject(index)),
                headline=f"release of {site.subject(index)}",
                examples=(index,),
                seconds=0.1,
            )

    @classmethod
    def judge(cls, found: Sequence[ReleaseFinding], grounds: Grounds) -> Iterable[Verdict]:
        """The verdict on every release, from attacks, controls, derivative and bounds of all audits."""
        return judge(found, grounds)

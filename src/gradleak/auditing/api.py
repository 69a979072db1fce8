"""`gradleak.audit`: an audit of one's own model and batch in one call."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from gradleak.attacks import Attack
from gradleak.auditing.cautions import cautions
from gradleak.auditing.default_plan import default_plan
from gradleak.auditing.plan import Plan
from gradleak.auditing.run import Progress, estimate, run_plan
from gradleak.core import Batch, HonestButCurious, Release, ThreatModel, Update
from gradleak.results import InputError, Record, Thresholds, check_flags
from gradleak.risk import Measure, SettingMeasure


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of a run, as distinct from its subject.

    Attributes:
        seed: all randomness derives from it.
        jobs: worker processes; None for the number of cores. Has no influence on any number.
        pictures: save originals and reconstructions beside the record (private data on disk: off by default).
        thresholds: when an example counts as rebuilt.
        max_bytes: memory budget of the closed-form operators.
        quiet: print neither the cost estimate nor progress.
        name: of the run.
    """

    seed: int = 0
    jobs: int | None = 1
    pictures: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    max_bytes: int = 2**30
    quiet: bool = False
    name: str = "audit"

    def __post_init__(self) -> None:
        """Check the truth values."""
        check_flags(self, "pictures", "quiet")


def audit(
    model: nn.Module,
    batch: Batch | tuple[Tensor, Tensor],
    *,
    loss: str | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    mode: str = "eval",
    release: Release | None = None,
    threat: ThreatModel | None = None,
    attacks: Mapping[str, Attack] | None = None,
    measures: Sequence[Measure | SettingMeasure] | None = None,
    update: Update | None = None,
    out: str | os.PathLike[str] | None = None,
    options: AuditOptions | None = None,
) -> Record:
    """The record of an audit of one client step: gate, controls, closed-form risk, attacks, scores and verdicts.

    The whole batch is one update, as a client would send it. By default the server knows the model, the protocol, the
    batch size and the domain; labels are recovered by the attack; `GaussNewton` attacks where there are at most 4,096
    unknowns, and beside it `InvertingGradients(iterations=1000, restarts=1)`. The estimated cost is printed first.

    Args:
        model: any `nn.Module`; stays as it is.
        batch: a `Batch`, or a pair (inputs (b, ...), targets); state a `Domain` in the batch, else one is guessed.
        loss: "cross_entropy", "mse", "bce_with_logits", "nll" or a callable (outputs, targets) -> scalar.
        mode: "eval" or "train", as the client runs the model.
        release: protocol and defenses; default FedSGD without defenses.
        threat: what the server knows; default `HonestButCurious(batch_size=True, domain=True)`.
        attacks: by name; default as above.
        measures: closed-form measures; default I²F, its lower bound and the gradient norm. Add
            `BayesianCramerRao(public=..., unit="pixel_rmse")` for a bound on every attacker that a verdict can read.
        update: the update that was really sent, if there is one; the consistency gate compares it with `batch`.
        out: folder of the record (continued if it holds this audit); default a new temporary folder.
        options: seed, jobs, thresholds, pictures.

    Returns:
        The record; `record.verdicts[-1]` is the verdict on the run, `gradleak.write_html(record, path)` the report.

    Raises:
        GradleakError: in one line, with what was expected, what came and what to do.
    """
    chosen = options or AuditOptions()
    whole = _batch(batch)
    _check_kinds(release, update, threat, attacks)
    proper = isinstance(measures, Collection) and all(isinstance(one, Measure | SettingMeasure) for one in measures)
    if measures is not None and not proper:
        raise InputError("measures: expected a list of measures such as [InversionInfluence()]; write [...]")
    plan = default_plan(model, whole, loss=loss, mode=mode, release=release, attacks=attacks, measures=measures)
    site = plan.site
    if update is not None:
        given = replace(site.scenarios[0], updates={0: update.align(site.objective)})
        site = replace(site, scenarios=[given])
    site = replace(
        site,
        name=chosen.name,
        seed=chosen.seed,
        threat=threat or HonestButCurious(),
        thresholds=chosen.thresholds,
        pictures=chosen.pictures,
        max_bytes=chosen.max_bytes,
    )
    plan = replace(plan, site=site)
    folder = tempfile.mkdtemp(prefix="gradleak-") if out is None else out
    for warning in _warnings(model, mode, plan) if not chosen.quiet else ():
        sys.stderr.write(f"gradleak: {warning}\n")
    if not chosen.quiet:
        sys.stderr.write(f"gradleak: about {estimate(plan):,.0f} plain gradients, record in {folder}\n")
        for refusal in plan.refusals():
            sys.stderr.write(f"gradleak: {refusal}\n")
    return run_plan(plan, folder, jobs=chosen.jobs, progress=None if chosen.quiet else _report_progress(plan))


def _batch(batch: Any) -> Batch:
    if isinstance(batch, Batch):
        return batch
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return Batch(*batch)
    raise InputError(
        "batch: expected a gradleak.Batch or a pair of tensors (inputs, targets), got "
        f"{type(batch).__name__}; from a DataLoader take next(iter(loader)), from numpy use torch.as_tensor"
    )


def _check_kinds(
    release: Release | None, update: Update | None, threat: ThreatModel | None, attacks: Mapping[str, Attack] | None
) -> None:
    if release is not None and not isinstance(release, Release):
        raise InputError(
            f"release: expected gradleak.Release(protocol, [defenses]), got {type(release).__name__}; for a defense "
            "alone write Release(FedSGD(), [defense])"
        )
    if update is not None and not isinstance(update, Update):
        raise InputError(
            f"update: expected a gradleak.Update, got {type(update).__name__}; use Update.load(file) or "
            "Update(tensors=dict)"
        )
    if threat is not None and not isinstance(threat, ThreatModel):
        raise InputError(f"threat: expected a threat model such as HonestButCurious(), got {type(threat).__name__}")
    if attacks is not None and not (
        isinstance(attacks, Mapping)
        and all(isinstance(name, str) and isinstance(attack, Attack) for name, attack in attacks.items())
    ):
        raise InputError(f"attacks: expected a dict of attacks by name, got {type(attacks).__name__}")


def _warnings(model: nn.Module, mode: str, plan: Plan) -> Iterator[str]:
    """Warnings for a user before the numbers."""
    domain = plan.site.batches[0].domain
    if plan.site.domain_guessed and domain is not None:
        yield (
            f"no domain was stated; guessed {domain.kind.value} data in [{domain.low:g}, {domain.high:g}] from the "
            "private batch, and the adversary is told so; state gradleak.Domain in the Batch"
        )
    yield from cautions(plan.site)
    random_layers = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    if model.training and mode == "eval" and any(isinstance(part, random_layers) for part in model.modules()):
        yield "the model is in train mode and has BatchNorm or Dropout, but mode='eval' is audited; pass mode='train'"


def _report_progress(plan: Plan) -> Progress:
    def report(done: int, total: int, what: str) -> None:
        sys.stderr.write(f"gradleak: {plan.site.name}: {done}/{total} {what}\n")

    return report

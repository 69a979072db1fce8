"""`gradleak.audit`: an audit of one's own model and batch in one call."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from gradleak.attacks import Attack
from gradleak.auditing.plan import Plan, default_plan
from gradleak.auditing.run import Progress, estimate, run_plan
from gradleak.auditing.verdict import Thresholds
from gradleak.core import Batch, HonestButCurious, Release, ThreatModel, Update
from gradleak.results import Record


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How an audit is run, as distinct from what it is about.

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


def audit(
    model: nn.Module,
    batch: Batch | tuple[Tensor, Tensor],
    *,
    loss: str | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    mode: str = "eval",
    release: Release | None = None,
    threat: ThreatModel | None = None,
    attacks: Mapping[str, Attack] | None = None,
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
        update: the update that was really sent, if there is one; the consistency gate compares it with `batch`.
        out: folder of the record (continued if it holds this audit); default a new temporary folder.
        options: seed, jobs, thresholds, pictures.

    Returns:
        The record; `record.verdicts[-1]` is the verdict on the run, `gradleak.write_html(record, path)` the report.

    Raises:
        GradleakError: in one line, with what was expected, what came and what to do.
    """
    chosen = options or AuditOptions()
    whole = batch if isinstance(batch, Batch) else Batch(*batch)
    plan = default_plan(model, whole, loss=loss, mode=mode, release=release)
    scenario = plan.scenarios[0]
    if attacks is not None:
        scenario = replace(scenario, attacks={name: [0] for name in attacks})
    if update is not None:
        scenario = replace(scenario, updates={0: update.align(plan.objective)})
    plan = replace(
        plan,
        name=chosen.name,
        seed=chosen.seed,
        scenarios=[scenario],
        attacks=plan.attacks if attacks is None else dict(attacks),
        threat=threat or HonestButCurious(),
        thresholds=chosen.thresholds,
        pictures=chosen.pictures,
        max_bytes=chosen.max_bytes,
    )
    folder = tempfile.mkdtemp(prefix="gradleak-") if out is None else out
    if not chosen.quiet:
        sys.stderr.write(f"gradleak: about {estimate(plan):,.0f} plain gradients, record in {folder}\n")
    return run_plan(plan, folder, jobs=chosen.jobs, progress=None if chosen.quiet else _report_progress(plan))


def _report_progress(plan: Plan) -> Progress:
    def report(done: int, total: int, what: str) -> None:
        sys.stderr.write(f"gradleak: {plan.name}: {done}/{total} {what}\n")

    return report

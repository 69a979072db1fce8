"""`gradleak.audit` on one's own model, loss and data."""

from __future__ import annotations

import contextlib
import hashlib
import io
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradleak as gl
from gradleak.auditing import Controls, Plan, cautions, default_plan, run_plan
from gradleak.audits.released import ReleaseAudit
from gradleak.models import mlp
from gradleak.results import PlanError
from tests.auditing.reading import attacking, attacks, controls, releases

QUIET = gl.AuditOptions(quiet=True)
# As by default, with a shorter search.
SHORT = {"gauss_newton": gl.GaussNewton(), "inverting_gradients": gl.InvertingGradients(iterations=60, restarts=1)}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 1, channels: int = 1) -> torch.Tensor:
    return torch.rand((count, channels, 6, 6), generator=generator(1))


def classifier(channels: int = 1) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 36, 20), nn.Tanh(), nn.Linear(20, 4))


def state(model: nn.Module) -> str:
    parts = [f"{n}{t.detach().numpy().tobytes()}{t.grad}{t.requires_grad}" for n, t in model.named_parameters()]
    parts += [f"{n}{t.numpy().tobytes()}" for n, t in model.named_buffers()]
    parts += [f"{n}{m.training}{len(m._forward_hooks)}" for n, m in model.named_modules()]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Told:
    """One audit by default, and what was seen of it."""

    record: gl.Record
    page: str
    said: str
    states: tuple[str, str]
    random_states: tuple[torch.Tensor, torch.Tensor]


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a connection was opened")


@pytest.fixture(scope="module")
def by_default(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """`gl.audit(model, batch)` with nothing else said, where no connection can be opened."""
    folder, said = tmp_path_factory.mktemp("default"), io.StringIO()
    model = classifier().train()
    before, random_before = state(model), torch.random.get_rng_state()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(socket.socket, "connect", _refuse)
        patch.setattr(socket, "create_connection", _refuse)
        record = gl.audit(model, (images(), torch.tensor([2])), out=folder / "out")
        page = Path(gl.write_html(record, folder / "report.html")).read_text(encoding="utf-8")
    return Told(
        record=record,
        page=page,
        said=said.getvalue(),
        states=(before, state(model)),
        random_states=(random_before, torch.random.get_rng_state()),
    )


def test_five_lines_on_ones_own_model(by_default: Told) -> None:
    assert by_default.record.verdicts[-1].verdict == "leaks"
    assert by_default.states[1] == by_default.states[0]
    assert torch.equal(*by_default.random_states)
    assert "leaks" in by_default.page


def test_one_example_behind_a_chain_of_layers_is_read_without_a_search(by_default: Told) -> None:
    found = next(one for one in by_default.record.findings if one.item.endswith("/peel") and "control" not in one.item)
    assert found.outcome is gl.Outcome.CONVERGED
    assert found.value("psnr") > 100
    assert {name for name, one in controls(by_default.record).items() if name.endswith("peel") and one.control.passed}


@pytest.mark.parametrize(
    ("model", "count", "release"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.GELU(), nn.Linear(8, 4)), 1, None),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4)), 3, None),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4)),
            1,
            gl.Release(gl.FedSGD(), [gl.Clip(1.0)]),
        ),
    ],
    ids=["no inverse", "batch", "clipped"],
)
def test_what_cannot_be_read_layer_by_layer_is_not_tried_so(model: nn.Module, count: int, release: gl.Release) -> None:
    plan = default_plan(
        model, gl.Batch(images(count), torch.arange(count), gl.Domain(shape=(1, 6, 6))), release=release
    )
    assert sorted(attacking(plan).attacks) == ["gauss_newton", "inverting_gradients"]


def test_nothing_needs_the_network(by_default: Told) -> None:
    assert by_default.record.complete


def test_no_private_value_reaches_the_record(by_default: Told) -> None:
    path = by_default.record.path
    assert path is not None
    text = path.read_text(encoding="utf-8")
    for value in images().reshape(-1)[:10].tolist():
        assert f"{value:.9f}"[:9] not in text  # five digits are met by chance among so many losses
    assert not (path.parent / "pictures").exists()


def test_a_guessed_domain_is_said_aloud(by_default: Told) -> None:
    assert "no domain was stated" in by_default.said


def test_the_model_is_left_alone_after_an_error() -> None:
    model = classifier(channels=3)
    before = state(model)
    with pytest.raises(gl.GradleakError, match="does not accept inputs"):
        gl.audit(model, (images(), torch.tensor([2])), options=QUIET)
    assert state(model) == before


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.long), "at least one example"),
        (images(), torch.tensor([4]), "class indices from 0 to 3"),
        (images(), torch.tensor([-1]), "class indices from 0 to 3"),
        (images(2), torch.tensor([1]), "expected 2 rows"),
        (images(channels=3), torch.tensor([1]), "number of channels"),
        (images() * float("nan"), torch.tensor([1]), "finite numbers"),
        ((images() * 255).to(torch.uint8), torch.tensor([1]), "floating point"),
    ],
)
def test_bad_data_is_one_clear_line(inputs: torch.Tensor, targets: torch.Tensor, message: str, tmp_path: Path) -> None:
    with pytest.raises(gl.GradleakError, match=message) as caught:
        gl.audit(classifier(), (inputs, targets), out=tmp_path / "out", options=QUIET)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_user_loss_with_several_outputs_and_disclosed_targets(tmp_path: Path) -> None:
    """Two heads, a dict output and summed losses, one channel: the label step is switched off with a reason."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh())
            self.mask, self.label = nn.Linear(16, 36), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            features = self.body(x)
            return {"mask": torch.sigmoid(self.mask(features)), "label": self.label(features)}

    def loss(outputs: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        mask = targets[:, 3:]
        overlap = 1 - (2 * (outputs["mask"] * mask).sum() + 1) / (outputs["mask"].sum() + mask.sum() + 1)
        return overlap + nn.functional.cross_entropy(outputs["label"], targets[:, :3])

    targets = torch.cat([torch.tensor([[0.0, 1.0, 0.0]]), (images() > 0.5).float().reshape(1, 36)], dim=1)
    model = TwoHeads()
    refused = gl.audit(model, (images(), targets), loss=loss, attacks=SHORT, out=tmp_path / "a", options=QUIET)
    attack = attacks(refused)[0]
    assert attack.status == "refused"
    assert "targets" in attack.note
    disclosed = gl.HonestButCurious(targets=True)
    record = gl.audit(
        model, (images(), targets), loss=loss, threat=disclosed, attacks=SHORT, out=tmp_path / "b", options=QUIET
    )
    assert record.verdicts[-1].verdict == "leaks"


def test_a_relu_network_is_not_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 4))
    record = gl.audit(model, (images(), torch.tensor([0])), attacks=SHORT, out=tmp_path / "out", options=QUIET)
    assert all(one.status == "done" for one in record.findings)
    assert record.verdicts[-1].verdict == "leaks"


def test_a_batch_of_two_is_paired_before_scoring(tmp_path: Path) -> None:
    threat = gl.HonestButCurious(targets=True)
    attacks = {"gauss_newton": gl.GaussNewton(max_steps=60, starts=3)}
    record = gl.audit(
        classifier(),
        (images(2), torch.tensor([0, 3])),
        threat=threat,
        attacks=attacks,
        out=tmp_path / "o",
        options=QUIET,
    )
    score = next(s for item, s in record.scores if item.endswith("gauss_newton") and s.name == "pixel_rmse")
    assert len(score.details["per_example"]) == 2
    assert releases(record)[0].knowledge["targets"] is not None


def test_a_converged_model_is_uninformative_not_low_risk(tmp_path: Path) -> None:
    """U45: a model trained to convergence."""
    model = classifier()
    inputs, targets = images(), torch.tensor([1])
    with torch.no_grad():
        model[3].weight.mul_(0)
        model[3].bias.copy_(torch.tensor([0.0, 40.0, 0.0, 0.0]))
    record = gl.audit(model, (inputs, targets), attacks=SHORT, out=tmp_path / "out", options=QUIET)
    verdict = record.verdicts[-1]
    assert verdict.verdict == "inconclusive"
    assert verdict.reason in ("converged_model", "no_signal")


def test_an_update_from_a_real_round(tmp_path: Path) -> None:
    model, inputs, targets = classifier(), images(), torch.tensor([2])
    nn.functional.cross_entropy(model(inputs), targets).backward()
    sent = {f"module.{name}": parameter.grad for name, parameter in model.named_parameters()}
    update = gl.Update(tensors=sent)
    record = gl.audit(model, (inputs, targets), update=update, attacks=SHORT, out=tmp_path / "out", options=QUIET)
    (release,) = releases(record)
    assert release.gate.status == "consistent"
    assert any("module.1.weight read as 1.weight" in note for note in release.alignment)
    assert record.verdicts[-1].verdict == "leaks"
    del sent["module.3.bias"]
    with pytest.raises(gl.GradleakError, match="1 missing"):
        gl.audit(model, (inputs, targets), update=gl.Update(tensors=sent), out=tmp_path / "b", options=QUIET)


def test_inference_mode_is_one_refusal(tmp_path: Path) -> None:
    """Five items failed, and the verdict was inconclusive."""
    model = classifier()
    with torch.inference_mode(), pytest.raises(gl.GradleakError, match="leave that block first"):
        gl.audit(model, (images(), torch.tensor([2])), out=tmp_path / "out", options=QUIET)
    objective, batch = gl.Objective.from_module(model), gl.Batch(images(), torch.tensor([2]))
    release = gl.Release(gl.FedSGD())
    update = release(objective, batch, generator())
    knowledge = gl.HonestButCurious(targets=True).disclose(objective, release, batch)
    with torch.inference_mode(), pytest.raises(gl.GradleakError, match="leave that block first"):
        gl.GaussNewton()(update, knowledge, generator=generator())
    assert not (tmp_path / "out").exists()


def test_tensors_from_inference_mode_and_from_a_graph_are_taken(tmp_path: Path) -> None:
    with torch.inference_mode():
        model, inputs = classifier(), images().clone()
    found = []
    for number, given in enumerate((inputs, images().requires_grad_() * 1, images())):
        with torch.no_grad():
            record = gl.audit(
                model, (given, torch.tensor([2])), attacks={"attack": SHORT["gauss_newton"]}, out=tmp_path / str(number),
                options=QUIET,
            )  # fmt: skip
        assert all(one.status == "done" for one in record.findings)
        found.append([score.value for _, score in record.scores])
    assert found[0] == found[1] == found[2]


def test_ignored_and_sparse_parts_of_an_audit(tmp_path: Path) -> None:
    """U26b and V26: a sparse table of places, and an index that the loss ignores."""

    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.places = classifier(), nn.Embedding(3, 4, sparse=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x) + self.places(torch.tensor([1]))

    model, targets = Places(), torch.tensor([1, 255])
    loss = nn.CrossEntropyLoss(ignore_index=255)
    loss(model(images(2)), targets).backward()
    update = gl.Update(tensors={name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    record = gl.audit(
        model, (images(2), targets), loss=loss, update=update, threat=gl.HonestButCurious(targets=True),
        attacks={"attack": SHORT["gauss_newton"]}, out=tmp_path / "out", options=QUIET,
    )  # fmt: skip
    assert all(one.status == "done" for one in record.findings)
    assert record.verdicts[-1].verdict == "leaks"
    gate = releases(record)[0].gate
    assert gate is not None
    assert gate.status == "consistent"


def test_a_table_row_needs_no_image(tmp_path: Path) -> None:
    """Tabular data: no SSIM, rows in place of pictures, everything else."""
    domain = gl.Domain(shape=(12,), low=-3.0, high=3.0, kind="tabular")
    row = torch.randn((1, 12), generator=generator(4)).clamp(-3, 3)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 2))
    options = gl.AuditOptions(quiet=True, pictures=True)
    batch = gl.Batch(row, torch.tensor([1]), domain)
    record = gl.audit(model, batch, attacks=SHORT, out=tmp_path / "out", options=options)
    assert record.verdicts[-1].verdict == "leaks"
    ssim = [score for _, score in record.scores if score.name == "ssim"]
    assert all(score.value is None and score.outcome.label == "unsupported" for score in ssim)
    assert {file.suffix for file in (tmp_path / "out" / "pictures").iterdir()} == {".json"}


def test_a_one_dimensional_signal(tmp_path: Path) -> None:
    wave = torch.sin(torch.arange(40) / 3)[None, None] * 0.5
    domain = gl.Domain(shape=(1, 40), low=-1.0, high=1.0, kind="signal")
    model = nn.Sequential(nn.Conv1d(1, 6, 5, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(108, 3))
    batch = gl.Batch(wave, torch.tensor([2]), domain)
    record = gl.audit(model, batch, attacks=SHORT, out=tmp_path / "out", options=QUIET)
    assert record.complete
    assert all(one.status == "done" for one in record.findings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update": "g.pt"}, r"expected a gradleak\.Update, got str; use Update\.load"),
        ({"release": gl.GaussianNoise(std=1e-3)}, r"Release\(FedSGD\(\), \[defense\]\)"),
        ({"loss": nn.CrossEntropyLoss}, r"write CrossEntropyLoss\(\)"),
        ({"attacks": [gl.attacks.DLG()]}, "expected a dict of attacks by name, got list"),
        ({"attacks": {3: gl.attacks.DLG()}}, "expected a dict of attacks by name, got dict; names are texts"),
        ({"attacks": gl.GaussNewton}, r"got the class GaussNewton \(call it\); write {'gauss_newton': GaussNewton\("),
        ({"attacks": {"a": gl.attacks.DLG}}, r"got the class DLG \(call it\); write {'dlg': DLG\("),
        ({"attacks": [gl.attacks.DLG]}, r"got list; write {'dlg': DLG\("),
        ({"attacks": "dlg"}, "got str; names are texts"),
        ({"defenses": [gl.Clip(1.0)]}, r"got 'defenses'; write release=Release\(FedSGD\(\), \[...\]\)"),
        ({"protocol": gl.FedSGD()}, r"got 'protocol'; write release=Release\(protocol\)"),
        ({"seed": 3}, r"got 'seed'; write options=AuditOptions\(seed=...\)"),
        ({"thread": gl.HonestButCurious()}, r"got 'thread'; did you mean 'threat'\?"),
        ({"options": {"seed": 3}}, r"expected AuditOptions\(seed=..., jobs=...\), got dict"),
        ({"options": gl.AuditOptions}, r"got the class AuditOptions \(call it\)"),
        ({"release": gl.FedSGD}, r"got the class FedSGD \(call it\)"),
        ({"measures": gl.GradientNorm}, r"expected a list of measures.*got the class GradientNorm \(call it\)"),
        ({"measures": [gl.GradientNorm]}, r"got the class GradientNorm \(call it\); write \[...\]"),
        ({"update": [torch.ones(2)]}, r"got list; use Update\.load\(file\) or Update\(tensors=dict\)"),
        ({"measures": 3}, "expected a list of measures"),
        ({"threat": "curious"}, "expected a threat model"),
        ({"batch": [1, 2]}, "from a DataLoader take next"),
        ({"batch": images()}, "expected a gradleak.Batch or a pair"),
    ],
)
def test_the_wrong_kind_of_object_is_named(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {"batch": (images(), torch.tensor([1])), "options": QUIET, **arguments}
    with pytest.raises(gl.GradleakError, match=message) as caught:
        gl.audit(classifier(), given.pop("batch"), out=tmp_path / "out", **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("third", "message"),
    [
        ([gl.Clip], r"got the class Clip \(call it\) as the third; write release=Release\(FedSGD\(\), \[...\]\)"),
        ([gl.GaussianNoise(std=1.0)], r"got GaussianNoise as the third; write release=Release\(FedSGD\(\), \[...\]\)"),
        (gl.Release(gl.FedSGD()), r"got Release as the third; write release=\.\.\."),
        ({"dlg": gl.attacks.DLG()}, r"got DLG as the third; write attacks={name: attack}"),
        ("mse", r"got str as the third; write loss=\.\.\."),
        (3, "name it: one of attacks, loss, measures, mode, options, out, release, threat, update"),
    ],
)
def test_what_follows_without_a_name_is_answered_with_what_to_write(third: Any, message: str) -> None:
    with pytest.raises(gl.GradleakError, match=message):
        gl.audit(classifier(), (images(), torch.tensor([1])), third)


def test_data_outside_their_stated_domain_are_refused_before_the_run(tmp_path: Path) -> None:
    batch = gl.Batch(images() * 5, torch.tensor([1]), gl.Domain.image(channels=1, height=6, width=6))
    with pytest.raises(gl.GradleakError, match="range"):
        gl.audit(classifier(), batch, out=tmp_path / "out", options=QUIET)
    assert not (tmp_path / "out").exists()


class Remembers(nn.Module):
    """A model that keeps its last batch, and may read the one before."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.net, self.reads, self.last = classifier(), reads, torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.last if self.reads else x
        self.last = x
        return self.net(x) + 0 * before.sum()


def test_a_stored_batch_that_the_model_reads_is_refused(tmp_path: Path) -> None:
    model = Remembers(reads=True)
    model(images())
    with pytest.raises(gl.GradleakError, match=r"^model\.last: expected nothing of the private data.*got inputs"):
        gl.audit(model, (images(), torch.tensor([1])), out=tmp_path / "out", options=QUIET)
    assert not (tmp_path / "out").exists()


def test_a_stored_batch_that_the_model_does_not_read_is_kept_from_attacks(tmp_path: Path) -> None:
    model = Remembers(reads=False)
    batch = gl.Batch(images(), torch.tensor([1]), gl.Domain.image(channels=1, height=6, width=6))
    found, attacks = [], {"inverting_gradients": gl.InvertingGradients(iterations=5, restarts=1)}
    for place, kept in enumerate((images(), torch.ones(2, 1, 6, 6))):
        model(kept)
        record = gl.audit(model, batch, attacks=attacks, out=tmp_path / str(place), options=QUIET)
        assert releases(record)[0].knowledge["objective"]["notes"] == [
            "kept from attacks, since no evaluation reads it: last"
        ]
        found.append([score.value for finding in record.findings for score in finding.scores])
    assert found[0] == found[1]


def test_a_loss_that_keeps_its_targets_is_refused(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen[:] = [targets]
        return torch.nn.functional.cross_entropy(outputs, targets)

    labels = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0, 1])
    batch = gl.Batch(images(9), labels, gl.Domain(shape=(1, 6, 6)))
    with pytest.raises(gl.GradleakError, match=r"^loss \(closure: seen\)\[0\]: expected nothing.*got labels"):
        gl.audit(classifier(), batch, loss=loss, out=tmp_path / "out", options=QUIET)
    assert not (tmp_path / "out").exists()


def test_a_range_of_which_the_images_use_little_is_said_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    domain = gl.Domain(shape=(1, 6, 6), high=255.0)
    batch = gl.Batch(images(), torch.tensor([2]), domain)
    options = gl.AuditOptions(seed=1)
    record = gl.audit(classifier(), batch, attacks={}, measures=[], out=tmp_path / "out", options=options)
    said = "all values lie in 0 to 1, 1/255 of the declared range 0 to 255"
    assert said in capsys.readouterr().err
    assert said in releases(record)[0].range_note
    for suffix, write in (("md", gl.write_markdown), ("html", gl.write_html), ("json", gl.write_json)):
        text = Path(write(record, tmp_path / f"report.{suffix}")).read_text(encoding="utf-8").lower()
        assert said in text


def test_a_model_that_lets_nothing_through_is_named_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    norm = nn.BatchNorm2d(1)
    with torch.no_grad():
        norm.running_mean.fill_(1e9)  # type: ignore[union-attr]
    batch = gl.Batch(images(), torch.tensor([2]), gl.Domain(shape=(1, 6, 6)))
    options = gl.AuditOptions(seed=1)
    model = nn.Sequential(norm, classifier()).eval()
    record = gl.audit(model, batch, attacks={}, out=tmp_path / "out", options=options)
    said = "running_mean of BatchNorm layer 0 is up to 1e+09"
    assert f"mind the model: {said}" in capsys.readouterr().err
    assert said in releases(record)[0].model_note
    notes = [finding.note for finding in record.findings if finding.kind == "risk"]
    assert any(said in note for note in notes)
    assert said.lower() in Path(gl.write_html(record, tmp_path / "report.html")).read_text(encoding="utf-8").lower()


def test_a_model_that_opens_single_examples_is_a_caution_where_a_plan_has_enough_rows() -> None:
    rows = torch.rand(80, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
        model[1].bias.copy_(-torch.quantile(rows.flatten(1) @ model[1].weight.T, 31 / 32, dim=0))
    told = [cautions(default_plan(model, gl.Batch(rows[:count], torch.arange(count) % 4))) for count in (80, 63)]
    assert told[0][0].startswith("mind the model: Do not compute a gradient on this model: refuse the round. layer 1: ")
    assert told[1] == []


def test_dark_images_of_a_plan_do_not_make_its_range_wrong(tmp_path: Path) -> None:
    plan = default_plan(classifier(), gl.Batch(0.3 * images(), torch.tensor([2]), gl.Domain(shape=(1, 6, 6))))
    bright = gl.Batch(0.5 + 0.5 * images(), torch.tensor([1]), gl.Domain(shape=(1, 6, 6)))
    site = plan.site
    assert "mind the range" in cautions(plan)[0]
    assert cautions(replace(plan, site=replace(site, batches=[*site.batches, bright]))) == []
    scenario = replace(site.scenarios[0], examples=[0, 1], attacks={"ig": [0, 1]})
    whole = replace(site, batches=[*site.batches, bright], scenarios=[scenario], controls=Controls(positive=False))
    quick = replace(attacking(plan), attacks={"ig": gl.InvertingGradients(iterations=2, restarts=1)})
    record = run_plan(Plan(site=whole, audits=[ReleaseAudit(), quick]), tmp_path / "out", jobs=1)
    assert not any("declared range" in str(line) for line in record.lines)


def test_the_planted_leak_is_for_an_attack_that_runs(tmp_path: Path) -> None:
    plan = default_plan(classifier(), gl.Batch(images(), torch.tensor([2]), gl.Domain(shape=(1, 6, 6))))
    both = {"gias": gl.attacks.GIAS(), "gauss_newton": gl.GaussNewton(max_steps=20)}
    audits = [ReleaseAudit(), replace(attacking(plan), attacks=both)]

    def audited(names: list[str], folder: str) -> gl.Record:
        scenario = replace(plan.site.scenarios[0], attacks={name: [0] for name in names})
        return run_plan(Plan(site=replace(plan.site, scenarios=[scenario]), audits=audits), tmp_path / folder, jobs=1)

    record = audited(["gias", "gauss_newton"], "out")
    found = {item: (one.attack, one.control and one.control.passed) for item, one in controls(record).items()}
    assert found["control/positive"] == ("gauss_newton", True)
    assert found["control/negative/gias"] == ("gias", None)
    assert record.verdicts[-1].verdict == "leaks"
    record = audited(["gias"], "alone")
    assert {verdict.reason for verdict in record.verdicts} == {"no_attack_finished"}
    assert "needs generator" in record.verdicts[-1].explanation


def test_luck_in_a_batch_of_few_entries_is_no_leak(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(64, 6, generator=generator)
    targets = torch.randint(2, (64,), generator=generator)
    domain = gl.Domain(shape=(6,), low=0.0, high=1.0, kind="tabular")
    model = mlp(features=6, classes=2, hidden=(16,), activation="tanh", generator=generator)
    attacks = {"ig": gl.InvertingGradients(iterations=150, restarts=1)}
    quiet = gl.AuditOptions(quiet=True)
    record = gl.audit(model, gl.Batch(inputs, targets, domain), attacks=attacks, out=tmp_path / "many", options=quiet)
    reached = next(s for item, s in record.scores if s.name == "pixel_rmse" and item == "release/example 0/ig")
    assert reached.value is not None
    assert reached.value < 0.1
    assert record.verdicts[0].reason == "no_better_than_chance"
    limits = next(score for _, score in record.scores if score.name == "chance_pixel_rmse")
    assert record.verdicts[0].details["chance_pixel_rmse"] == limits.value
    page = gl.write_html(record, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "guesses without the update come as near by luck" in page
    said = "nearer than luck brings guesses without the update: a single one below 0.0"
    assert said in page
    assert said in gl.write_markdown(record, tmp_path / "report.md").read_text(encoding="utf-8")
    one = gl.Batch(inputs[:1], targets[:1], domain)
    strong = {"gauss_newton": gl.GaussNewton()}
    record = gl.audit(model, one, attacks=strong, out=tmp_path / "one", options=quiet)
    assert record.verdicts[0].reason == "attack_reached_threshold"


def test_public_rows_of_another_shape_are_refused_before_anything_runs(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    domain = gl.Domain(shape=(6,), low=0.0, high=1.0, kind="tabular")
    batch = gl.Batch(torch.rand(2, 6, generator=generator), torch.tensor([0, 1]), domain)
    public = gl.Batch(torch.rand(9, 7, generator=generator), torch.zeros(9, dtype=torch.long))
    model = mlp(features=6, classes=2, hidden=(4,), generator=generator)
    with pytest.raises(
        PlanError, match=r"threat\.public: expected examples of the shape of the audited ones, \(6,\), got \(7,\)"
    ):
        gl.audit(model, batch, threat=gl.HonestButCurious(public=public), out=tmp_path / "out", options=QUIET)

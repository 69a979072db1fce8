"""The command line: exit codes, one-line errors, help without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradleak.attacks import Support
from gradleak.cli.explain import explanation
from gradleak.reporting import words
from gradleak.results import Record
from gradleak.results.versions import version_of
from tests.auditing.conftest import SMALL_PLAN
from tests.cli.command import ROOT, called, started


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("cli")
    plan, out = folder / "plan.toml", folder / "out"
    plan.write_text(SMALL_PLAN, encoding="utf-8")
    ended = started("audit", str(plan), "--out", str(out), "--jobs", "1")
    assert ended.returncode == 0, ended.stderr
    assert "run: leaks" in ended.stdout
    assert "plain gradients" in ended.stderr
    return plan, out


def test_an_audit_leaves_record_and_reports(finished: tuple[Path, Path]) -> None:
    _, out = finished
    names = {path.name for path in out.iterdir()}
    assert {"record.jsonl", "report.html", "report.md", "report.json"} <= names
    assert json.loads((out / "report.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("verdict", "code"), [("leaks", 1), ("bounded", 0)])
def test_fail_on(finished: tuple[Path, Path], verdict: str, code: int) -> None:
    plan, out = finished
    assert called("audit", str(plan), "--out", str(out), "--quiet", "--fail-on", verdict).returncode == code


def test_shards_are_merged_to_the_same_record(finished: tuple[Path, Path], tmp_path: Path) -> None:
    plan, out = finished
    for number in (1, 2):
        ended = called(
            "audit", str(plan), "--out", str(tmp_path / str(number)), "--jobs", "1", "--shard", f"{number}/2"
        )
        assert ended.returncode == 0, ended.stderr
        assert f"shard {number}/2: done" in ended.stdout
        assert not (tmp_path / str(number) / "report.html").exists()
    folders = [str(tmp_path / number) for number in "21"]
    merged = called("merge", str(plan), *folders, "--out", str(tmp_path / "out"), "--fail-on", "leaks", "--quiet")
    assert merged.returncode == 1, merged.stderr
    assert (tmp_path / "out" / "report.html").exists()
    assert Record.load(tmp_path / "out").canonical() == Record.load(out).canonical()


def test_a_shard_gives_no_verdict_to_fail_on(finished: tuple[Path, Path], tmp_path: Path) -> None:
    plan, _ = finished
    ended = called("audit", str(plan), "--out", str(tmp_path), "--shard", "1/2", "--fail-on", "leaks")
    assert ended.returncode == 2
    assert "`gradleak merge` gives the verdicts" in ended.stderr


def test_fail_on_reads_the_policy(tmp_path: Path) -> None:
    """Both scenarios of the plan leak; as references, and without a policy, each gate answers otherwise."""
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    text = SMALL_PLAN.replace('name = "undefended"', 'name = "undefended"\nreference = true')
    plan.write_text(
        text.replace("std = 1e-6", "std = 0.5").replace("max_steps = 20", "max_steps = 4"), encoding="utf-8"
    )
    run = ("audit", str(plan), "--out", str(out), "--quiet", "--jobs", "1")
    ended = called(*run, "--fail-on", "policy")
    assert ended.returncode == 2
    assert "expected a scenario with `require`" in ended.stderr
    files = ("--junit", str(tmp_path / "ci" / "a.xml"), "--sarif", str(tmp_path / "ci" / "a.sarif"))
    ended = called(*run, "--fail-on", "leaks", *files)
    assert ended.returncode == 0, ended.stderr
    assert "undefended: leaks" in ended.stdout
    assert "run: inconclusive" in ended.stdout
    assert 'skipped="1"' in (tmp_path / "ci" / "a.xml").read_text(encoding="utf-8")
    located = json.loads((tmp_path / "ci" / "a.sarif").read_text(encoding="utf-8"))["runs"][0]["results"][0][
        "locations"
    ]
    line = located[0]["physicalLocation"]["region"]["startLine"]
    assert plan.read_text(encoding="utf-8").splitlines()[line - 1] == 'name = "noisy"'


def test_check_names_refusals_and_cost_and_runs_nothing(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(SMALL_PLAN, encoding="utf-8")
    bad.write_text(SMALL_PLAN.replace("std = 1e-6", "std = -1.0"), encoding="utf-8")
    ended = called("check", str(good))
    assert ended.returncode == 0, ended.stderr
    assert f"{good}: small: 2 examples, 2 scenarios, about " in ended.stdout
    ended = called("check", str(bad), str(good))
    assert ended.returncode == 2
    assert f"{bad}: scenario 'noisy'" in ended.stderr
    assert "plain gradients" in ended.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"good.toml", "bad.toml"}


def test_report_is_written_again_from_the_record(finished: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = finished
    for format_, name in (("html", "a.html"), ("markdown", "a.md"), ("json", "a.json")):
        ended = called("report", str(out), "--format", format_, "--out", str(tmp_path / name))
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / name).stat().st_size > 500


def test_every_row_is_in_the_document_where_it_is_asked_for(finished: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = finished
    target = tmp_path / "full.json"
    ended = called("report", str(out), "--format", "json", "--out", str(target), "--per-record")
    assert ended.returncode == 0, ended.stderr
    full = json.loads(target.read_text(encoding="utf-8"))
    brief = json.loads((out / "report.json").read_text(encoding="utf-8"))
    record = Record.load(out)
    assert len(full["findings"]) == sum(one.control is None for one in record.findings) > len(brief["findings"])
    assert len(full["verdicts"]) == len(record.verdicts)


def test_the_version_is_that_of_the_package() -> None:
    ended = called("--version")
    assert (ended.returncode, ended.stdout) == (0, f"gradleak {version_of('gradleak')}\n")


def test_the_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GRADLEAK_COMPLETE", "complete_bash")
    for typed, place, expected in (
        ("gradleak a", "1", {"audit", "advise"}),
        ("gradleak audit --fail", "2", {"--fail-on"}),
    ):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", place)
        assert set(called().stdout.split()) == expected


def test_a_report_without_a_format_leaves_no_page_of_an_older_version(finished: tuple[Path, Path]) -> None:
    _, out = finished
    pages = [out / name for name in ("report.html", "report.md", "report.json")]
    for page in pages:
        page.write_text("old", encoding="utf-8")
    ended = called("report", str(out))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(page) for page in pages]
    assert all(page.stat().st_size > 500 for page in pages)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("audit", "nowhere.toml", "--out", "x"), "no such file"),
        (("report", "nowhere"), "no such file"),
        (("explain", "GausNewton"), "did you mean 'GaussNewton'"),
        (("audit",), "Missing argument"),
        (("audit", "examples/digits.toml", "--out", "x", "--fail-on", "safe"), "safe"),
        (("frobnicate",), "frobnicate"),
        (
            ("train-generator", "nowhere.toml", "--out", "g.safetensors"),
            "expected a training file (TOML), got no such file",
        ),
        (("train-generator", "examples/digits_generator.toml", "--out", "g.pkl"), "expected a file name that ends in"),
    ],
)
def test_bad_input_ends_with_code_2_and_no_traceback(arguments: tuple[str, ...], message: str) -> None:
    ended = called(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_bad_input_ends_a_process_of_its_own_likewise() -> None:
    ended = started("report", "nowhere")  # which needs no torch
    assert ended.returncode == 2
    assert "no such file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bad_key_is_one_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(SMALL_PLAN.replace("max_steps", "max_step"), encoding="utf-8")
    ended = called("audit", str(plan), "--out", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "did you mean 'max_steps'" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_failed_item_ends_with_code_3(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    broken = '[attacks.broken]\nuse = "tests.auditing.broken_attack:Broken"\n[measures.influence]'
    text = SMALL_PLAN.replace("[measures.influence]", broken, 1)
    text = text.replace('gauss_newton = "all", inv', 'broken = [0], gauss_newton = "all", inv')
    plan.write_text(text, encoding="utf-8")
    ended = called("audit", str(plan), "--out", str(tmp_path / "out"), "--jobs", "1", "--quiet")
    assert ended.returncode == 3
    assert "ZeroDivisionError in broken_attack.py" in ended.stderr
    assert (tmp_path / "out" / "report.html").exists()


def test_help_and_reports_need_no_torch(finished: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = finished
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import gradleak, gradleak.cli\n"
        "from gradleak import Record, write_html\n"
        f"write_html(Record.load({str(out)!r}), {str(tmp_path / 'r.html')!r})\n"
        "sys.argv = ['gradleak', '--help']\n"
        "gradleak.cli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert "audit" in ended.stdout


def test_list_names_everything_that_is_exported() -> None:
    ended = called("list")
    assert ended.returncode == 0, ended.stderr
    for name in ("GaussNewton", "InvertingGradients", "DLG", "Blind", "Clip", "GaussianNoise", "FedSGD", "lenet_i2f"):
        assert f"  {name} " in ended.stdout
    for name in (
        "GIML",
        "InventionCheck",
        "train_vae",
        "SubspaceDistance",
        "InversionInfluence",
        "InversionInfluenceLowerBound",
        "GaussianReconstructionError",
        "mnist_digits",
    ):
        assert f"  {name} " in ended.stdout


@pytest.mark.parametrize(
    "name",
    [
        "I²F",
        "adaptive",
        "require",
        "GaussNewton",
        "inversion_influence",
        "no_signal",
        "inconclusive",
        "estimate",
        "Clip",
        "attack_table",
        "pixel_rmse",
        "wrong_pairing_rmse",
        "chance_pixel_rmse",
        "no_better_than_chance",
        "gl.risk.InversionInfluence",
        "DPSGD.from_noise_multiplier",
    ],
)
def test_explain(name: str) -> None:
    ended = called("explain", name)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout) > 60


def test_a_generator_is_trained_and_left_with_its_facts(tmp_path: Path) -> None:
    plan, out = tmp_path / "training.toml", tmp_path / "g.safetensors"
    plan.write_text(
        'data = { use = "mnist_digits", count = 16 }\n'
        '[training]\nuse = "train_dcgan"\ndata = "16 digits"\nlicense = "CC BY-SA 3.0"\n'
        "width = 2\nlatent_size = 3\nsteps = 2\nbatch_size = 4\n",
        encoding="utf-8",
    )
    ended = called("train-generator", str(plan), "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    assert "DCGAN trained on 16 images for 2 steps: 16 digits; CC BY-SA 3.0" in ended.stdout
    assert "discriminator" in ended.stderr
    assert json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))["network"]["use"] == "DCGANGenerator"
    assert str(out) in ended.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("supported", "hardly moved"),
        ("Contradicted", "invented, in part at least"),
        ("undecided", "could not be asked"),
        ("LatentKL", "KL(N(m, v)"),
        ("CMAES", "Covariance matrix adaptation"),
        ("st_lpips", "no verdict reads it"),
        ("PerceptualNetwork", "trunk of ST-LPIPS"),
        ("no_attack_finished", "mend the plan"),
        ("label_accuracy", "by counts"),
    ],
)
def test_every_word_of_a_report_and_every_part_is_explained(name: str, expected: str) -> None:
    assert expected in explanation(name)


def test_what_a_report_can_say_is_explained() -> None:
    for name in (*words.SUPPORT_MEANINGS, *words.REASONS, *words.SCORE_NAMES, *words.EVIDENCE):
        assert len(explanation(name)) > 20
    assert set(words.SUPPORT_MEANINGS) - {"refined"} == set(words.SUPPORT) == {support.value for support in Support}


@pytest.mark.slow
def test_changed_code_is_said_and_the_old_record_stays(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(
        '[model]\nuse = "own_code:model"\n[data]\nuse = "own_code:data"\n[[scenarios]]\nname = "a"\n', encoding="utf-8"
    )
    code = (
        "import torch\n\ndef model() -> torch.nn.Module:\n    torch_net = torch.nn.Linear(3, 2)\n    return torch_net\n\n"
        "def loss(outputs, targets) -> torch.Tensor:\n    return torch.nn.functional.cross_entropy(outputs, targets) * 1.0\n\n"
        "def data() -> tuple[torch.Tensor, torch.Tensor]:\n    return torch.full((1, 3), 0.25), torch.tensor([1])\n"
    )
    plan.write_text(plan.read_text() + '[objective]\nloss = "own_code:loss"\n', encoding="utf-8")
    for factor, said in (("1.0", False), ("1.0", False), ("2.0", True)):
        (tmp_path / "own_code.py").write_text(code.replace("* 1.0", f"* {factor}"), encoding="utf-8")
        ended = started("audit", str(plan), "--out", str(out), "--jobs", "1", path=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert ("everything is computed anew" in ended.stderr) is said
    assert len(list(out.glob("record-*.jsonl"))) == 1

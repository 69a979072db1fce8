"""`gradleak init` on models that are not from here: what it writes runs as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gradleak.auditing import load_plan
from gradleak.auditing.data_table import data_tables
from gradleak.auditing.default_plan import least_multiplier
from gradleak.auditing.new_plan import Wishes, new_plan
from gradleak.auditing.presets import Preset
from gradleak.cli.examples import examples
from gradleak.core import Batch, Domain, Objective, Release, Vocabulary
from gradleak.defenses import DPSGD
from gradleak.models import transformer
from gradleak.protocols import FedSGD
from gradleak.results import InputError, PlanError, Record, Thresholds
from gradleak.risk import ReconstructionProbability
from tests.cli.command import ROOT, called

MODELS = "tests.cli.own_models"
ROWS = [(61, 120.5, "B", "well"), (34, 0.0, "A", "ill"), (47, 8.0, "A", "well"), (52, 30.0, "C", "ill")]


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    file = tmp_path / "patients.csv"
    lines = ["age,dose,ward,outcome", *(",".join(map(str, row)) for row in ROWS)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    drawn = np.random.default_rng(0)
    for name in ("cat", "dog", "fox"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(2):
            pixels = drawn.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    ids = torch.randint(1, 50, (6, 12), generator=torch.Generator().manual_seed(0))
    save_file({"x": ids, "y": torch.tensor([0, 1, 0, 1, 1, 0])}, tmp_path / "ids.safetensors")
    return tmp_path / "ids.safetensors"


def audited(plan: Path) -> Record:
    ended = called("audit", str(plan), "--out", str(plan.parent / "run"), "--jobs", "1", "--quiet")
    assert ended.returncode == 0, ended.stderr
    return Record.load(plan.parent / "run")


def verdicts(record: Record) -> dict[str, str]:
    return {one.item: one.verdict.value for one in record.verdicts if one.audit is None}


def test_a_table_becomes_a_plan_that_runs_and_a_script(patients: Path, tmp_path: Path) -> None:
    plan = tmp_path / "first.toml"
    ended = called("init", f"{MODELS}:tabular", str(patients), "--preset", "quick", "--out", str(plan))
    assert ended.returncode == 0, ended.stderr
    assert f"wrote {plan}\nwrote {tmp_path / 'first.py'}\n" in ended.stdout
    assert "plain gradients" in ended.stdout
    assert ended.stdout.endswith(f"next: gradleak audit {plan} --out runs/1\n")
    site = load_plan(plan).site
    # Ages and doses by guessed ranges to [0, 1], three wards, classes in the order that the plan states.
    assert site.batches[0].inputs.shape == (1, 5)
    assert sorted(site.batches[0].inputs[0, 2:].tolist()) == [0.0, 0.0, 1.0]
    assert not site.domain_guessed
    text = plan.read_text(encoding="utf-8")
    assert 'target = "outcome"   # the last column' in text
    assert "age = [0.0, 100.0]" in text
    assert 'outcome = ["ill", "well"]' in text
    assert max(len(line.replace(str(tmp_path), "")) for line in text.splitlines()) <= 120
    again = called("init", f"{MODELS}:tabular", str(patients), "--out", str(plan))
    assert again.returncode == 2
    assert "expected no such file yet" in again.stderr
    assert plan.read_text(encoding="utf-8") == text
    script = (tmp_path / "first.py").read_text(encoding="utf-8")
    assert len([line for line in script.splitlines() if line]) <= 11
    compile(script, "first.py", "exec")


def test_a_plan_runs_as_written(sentences: Path, tmp_path: Path) -> None:
    plan = tmp_path / "first.toml"
    ended = called("init", f"{MODELS}:Transformer", str(sentences), "--preset", "quick", "--out", str(plan))
    assert ended.returncode == 0, ended.stderr
    found = verdicts(audited(plan))
    assert (found["undefended"], found["run"]) == ("leaks", "leaks")
    assert found["DP-SGD"] in ("bounded", "inconclusive")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tabular", "ResNet", "Transformer"])
def test_the_plans_and_scripts_of_three_models_run_as_written(
    name: str, patients: Path, pictures: Path, sentences: Path, tmp_path: Path
) -> None:
    data = {"tabular": patients, "ResNet": pictures, "Transformer": sentences}[name]
    plan = tmp_path / "first.toml"
    ended = called("init", f"{MODELS}:{name}", str(data), "--preset", "quick", "--out", str(plan))
    assert ended.returncode == 0, ended.stderr
    found = verdicts(audited(plan))
    assert set(found) == {"undefended", "DP-SGD", "run"}
    if name != "ResNet":
        assert found["undefended"] == "leaks"
    script = (tmp_path / "first.py").read_text(encoding="utf-8").replace("record.open()", "print(repr(record))")
    (tmp_path / "first.py").write_text(script, encoding="utf-8")
    known = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    ran = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": known, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Record(" in ran.stdout


def test_pictures_and_sentences_are_seen_for_what_they_are(pictures: Path, sentences: Path) -> None:
    images = new_plan(f"{MODELS}:ResNet", str(pictures), Wishes(preset=Preset.QUICK)).plan.site
    assert images.objective.loss_name == "cross_entropy"
    assert images.batches[0].inputs.shape == (1, 3, 8, 8)
    assert 0 <= float(images.batches[0].inputs.min()) <= float(images.batches[0].inputs.max()) <= 1
    wishes = Wishes(preset=Preset.QUICK, arguments={"size": 8}, batch_size=2)
    made = new_plan(f"{MODELS}:Transformer", str(sentences), wishes)
    (batch,) = made.plan.site.batches
    assert batch.inputs.shape == (2, 12)
    assert batch.declared_domain().vocabulary is not None
    assert batch.declared_domain().vocabulary.size == 50
    assert "size = 8" in made.text
    assert "model = Transformer(size=8)" in made.script


def test_sentences_are_bounded_from_the_smallest_noise_on_that_a_plan_proposes() -> None:
    objective = Objective.from_module(transformer(words=1004, length=8, width=16, blocks=1))
    ids = torch.arange(5, 13).reshape(2, 4)
    batch = Batch(ids, torch.tensor([0, 1]), Domain.tokens(Vocabulary(size=1004), 4))
    chance = ReconstructionProbability(candidates=500, within=0.5)
    least = least_multiplier(objective, batch, chance)
    assert least is not None

    def probability(multiplier: float) -> float:
        noise = DPSGD.from_noise_multiplier(noise_multiplier=multiplier, clip_norm=1.0, expected_batch_size=2)
        value = chance(objective, Release(FedSGD(), [noise]), targets=batch.targets, domain=batch.domain).value
        assert value is not None
        return value

    assert probability(least) <= Thresholds().reconstruction_probability < probability(0.99 * least)
    assert least_multiplier(objective, batch, ReconstructionProbability(candidates=12, within=0.5)) is None


def test_a_file_of_text_becomes_sentences_by_counted_words_or_those_of_the_model(tmp_path: Path) -> None:
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "red", "house"]
    lines = [" ".join(words[place % 12 : place % 12 + 5] + words[:2]) for place in range(0, 12, 2)]
    text = tmp_path / "notes.txt"
    text.write_text("\n".join([*lines, "", *lines]) + "\n", encoding="utf-8")
    arguments = {"words": 17, "length": 10, "classes": 2, "width": 8, "heads": 2}
    made = new_plan("transformer", str(text), Wishes(preset=Preset.QUICK, arguments=arguments, batch_size=2))
    (batch,) = made.plan.site.batches
    vocabulary = batch.declared_domain().vocabulary
    assert vocabulary is not None
    # [PAD], [CLS], [SEP], [MASK] and <other> stand before the twelve words; the table of places has ten rows.
    assert (batch.inputs.shape, vocabulary.size) == ((2, 10), 17)
    assert sorted(vocabulary.words[5:]) == sorted(words)
    assert all(vocabulary.decode(filter(vocabulary.ordinary, row.tolist())) in lines for row in batch.inputs)
    assert made.plan.site.objective.loss_name == "cross_entropy"
    assert "words = 13   # as many as the model knows, less [PAD]" in made.text
    # No private sentence is counted: those that are stand before it.
    assert "public_last = 6   # lines of it that are public" in made.text
    assert "\nfirst = 6\n" in made.text
    assert "no public text was named, so that the first 6 sentences are taken for public" in made.said
    assert "from gradleak.datasets import text_file" in made.script
    # Eight sentences that agree at no place are guessed more often than the limit allows.
    assert 'name = "DP-SGD"   # no noise makes it *bounded*: 8 candidates are guessed too often' in made.text
    assert "[measures.token]" in made.text
    decoder = {**arguments, "classes": 0, "causal": True}
    assert new_plan("transformer", str(text), Wishes(arguments=decoder)).plan.site.objective.loss_name == "causal_lm"
    (tmp_path / "public.txt").write_text("the cat and the dog\n", encoding="utf-8")
    named = new_plan("transformer", str(text), Wishes(arguments=arguments, public_text=str(tmp_path / "public.txt")))
    known = named.plan.site.batches[0].declared_domain().vocabulary
    assert known is not None
    assert (sorted(known.words[5:]), named.said) == (["and", "cat", "dog", "the"], "")
    assert "first = " not in named.text
    with pytest.raises(InputError, match="got both; drop one of the two"):
        next(data_tables(str(text), count=9, public_text="public.txt", words=("encoder.json", None)))
    text.write_text("a cat\n", encoding="utf-8")
    with pytest.raises(InputError, match="two sentences at least"):
        next(data_tables(str(text), count=9, vocabularies=[17]))
    text.write_text("\n".join([*lines, *lines]), encoding="utf-8")
    of_model = next(
        data_tables(str(text), count=9, vocabularies=[17, 10], words=("encoder.json", "vocab.bpe"), target="label")
    )
    assert of_model.table == {
        "use": "text_file",
        "path": text.as_posix(),
        "count": 9,
        "label_column": "label",
        "vocabulary": "encoder.json",
        "merges": "vocab.bpe",
        "length": 32,
        "targets": "classes",
    }


def test_numbers_of_an_array_get_the_range_that_is_written_down(tmp_path: Path) -> None:
    rows = np.linspace(-0.75, 0.75, 15, dtype=np.float32).reshape(3, 5)
    np.savez(tmp_path / "rows.npz", features=rows, paid=np.array([0, 1, 1]))
    made = new_plan(f"{MODELS}:tabular", str(tmp_path / "rows.npz"), Wishes(inputs="features", target="paid"))
    assert len(made.plan.site.batches) == 3
    assert '[data.domain]\nlow = -1.0\nhigh = 1.0\nkind = "tabular"' in made.text
    assert not made.plan.site.domain_guessed
    assert [scenario.name for scenario in made.plan.site.scenarios] == ["undefended", "noise", "DP-SGD"]


@pytest.mark.parametrize(
    ("model", "data", "flags", "message"),
    [
        (f"{MODELS}:unannotated", "patients.csv", (), "expected"),
        (
            f"{MODELS}:recurrent",
            "patients.csv",
            (),
            "the model does not take what .*patients.csv gives .*module:function",
        ),
        (
            f"{MODELS}:tabular",
            "patients.csv",
            ("--set", "inputs=2"),
            r"its first layer takes 2 features, and the data have 5 \(age 1, dose 1, ward 3\); write --set inputs=5, or",
        ),
        (f"{MODELS}:nothing", "patients.csv", (), "nothing"),
        (f"{MODELS}:tabular", "absent.csv", (), "no such file"),
        (f"{MODELS}:tabular", "no file", (), "expected a file, a folder of images or module:function"),
        (f"{MODELS}:tabular", "patients.csv", ("--target", "ages"), "expected the target among its columns age, dose"),
        (f"{MODELS}:tabular", "patients.csv", ("--set", "hidden"), "--set: expected NAME=VALUE"),
        (f"{MODELS}:tabular", "patients.csv", ("--size", "3"), "--size: expected HEIGHTxWIDTH"),
        (f"{MODELS}:tabular", "patients.csv", ("--merges", "m.txt"), "--merges: expected --vocabulary"),
        (f"{MODELS}:tabular", "patients.csv", ("--size", "0x3"), "--size: expected HEIGHTxWIDTH"),
        (f"{MODELS}:tabular", "patients.csv", ("--size", "3x3"), "--size: expected a folder of images"),
        (f"{MODELS}:tabular", "patients.csv", ("--loss", "hinge"), "^gradleak: loss: expected one of .*hinge"),
        (f"{MODELS}:frozen", "patients.csv", (), r"^gradleak: model: .* all frozen .*call requires_grad_\(True\)"),
        (f"{MODELS}:ending", "patients.csv", (), "^gradleak: model: ending raised SystemExit: 0"),
        (f"{MODELS}:tabular", "patients.csv", ("--batch-size", "3"), "multiple of batch_size = 3, got 4 examples"),
    ],
)
def test_refusals_are_one_sentence(
    model: str, data: str, flags: tuple[str, ...], message: str, patients: Path, tmp_path: Path
) -> None:
    place = data if data == "no file" else str(patients.parent / data)
    ended = called("init", model, place, *flags, "--out", str(tmp_path / "p.toml"))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert re.search(message, ended.stderr), ended.stderr
    assert not (tmp_path / "p.toml").exists()


def test_what_is_said_to_help_is_about_the_reading_that_is_named(pictures: Path) -> None:
    """The gray reading of a folder in color has one channel: it was said to be that of the data."""
    wishes = Wishes(size=(2, 2), arguments={"num_classes": 3})
    with pytest.raises(InputError, match=r"shape \(1, 3, 2, 2\)") as refusal:
        new_plan(f"{MODELS}:unfitting", str(pictures), wishes)
    assert "the data have" not in str(refusal.value)


def test_an_argument_is_named_by_what_it_changes(pictures: Path) -> None:
    with pytest.raises(InputError, match=r"outputs, and the targets are 3 classes; write --set num_classes=3, or"):
        new_plan(f"{MODELS}:ResNet", str(pictures), Wishes(arguments={"num_classes": 2}))
    # The number of channels is no argument, whatever has that value by chance.
    np.savez(pictures / "gray.npz", x=np.zeros((2, 8, 8), dtype=np.uint8), y=np.array([0, 1]))
    with pytest.raises(InputError, match=r"takes 3 channels, and the data have 1; write a function"):
        new_plan(f"{MODELS}:ResNet", str(pictures / "gray.npz"))


def test_nobody_is_asked_where_nobody_sits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    ended = called("init")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "expected MODEL" in ended.stderr


def test_an_example_is_copied_and_never_written_over(tmp_path: Path) -> None:
    target = tmp_path / "digits.toml"
    ended = called("init", "--example", "digits", "--out", str(target))
    assert ended.returncode == 0, ended.stderr
    assert target.read_bytes() == (ROOT / "examples" / "digits.toml").read_bytes()
    assert f"next: gradleak audit {target} --out runs/digits" in ended.stdout
    target.write_text("mine", encoding="utf-8")
    assert called("init", "--example", "digits", "--out", str(target)).returncode == 2
    assert target.read_text(encoding="utf-8") == "mine"
    assert called("init", "--example", "digits", "--out", str(target), "--force").returncode == 0
    assert target.read_bytes() == (ROOT / "examples" / "digits.toml").read_bytes()
    wrong = called("init", "--example", "digit", "--out", str(tmp_path / "x.toml"))
    assert wrong.returncode == 2
    assert "digits" in wrong.stderr
    assert set(examples()) == {file.stem for file in (ROOT / "examples").glob("*.toml")}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1,A,x\n\n,B,y", r"patients\.csv, line 4, column age: expected a value, got an empty cell among numbers"),
        ("1,A,x\n2,,y", "line 3, column ward: expected a value, got an empty cell among values"),
        *(
            (
                f"1,A,x\n{cell},B,y",
                f"line 3, column age: expected a value, got {re.escape(cell)} among numbers; fill it in",
            )
            for cell in ("?", "NaN", "NA", "-inf")
        ),
        ("1,A,x\n2,B", "line 3: expected 3 cells, as many as the header has names, got 2"),
        ("", "expected rows below the header, got none"),
        ('1,A,x\n2,"B,y', "check the delimiter and the quotes"),
        ("1,\udce4,x", "not a text file of rows in UTF-8"),
    ],
)
def test_a_cell_or_row_that_does_not_fit_is_named_with_its_line(rows: str, message: str, patients: Path) -> None:
    patients.write_bytes(f"age,ward,outcome\n{rows}\n".encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message):
        new_plan(f"{MODELS}:tabular", str(patients))


def test_what_is_unknown_among_names_is_a_value(patients: Path) -> None:
    patients.write_text("ward,dose,outcome\nA,1,x\n?,2,y\n", encoding="utf-8")
    (table,) = data_tables(str(patients), count=1)
    assert table.table["values"]["ward"] == ["?", "A"]


def test_a_model_of_half_precision_is_looked_at_in_its_own(patients: Path) -> None:
    made = new_plan(f"{MODELS}:half", str(patients), Wishes(preset=Preset.QUICK))
    assert made.plan.site.objective.dtype is torch.float32


def test_a_script_that_init_did_not_write_stays(patients: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch", encoding="utf-8")
    flags = ("--out", str(tmp_path / "net.toml"), "--force", "--preset", "quick")
    ended = called("init", f"{MODELS}:tabular", str(patients), *flags)
    assert ended.returncode == 2
    assert "expected a script that init wrote, got another" in ended.stderr
    assert (tmp_path / "net.py").read_text(encoding="utf-8") == "import torch"


def test_a_factory_has_to_say_what_it_makes(patients: Path) -> None:
    with pytest.raises(PlanError, match=r"unannotated.*Module"):
        new_plan(f"{MODELS}:unannotated", str(patients))

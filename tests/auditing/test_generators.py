"""Generators in plan files, in the positive control, and trained from a file of their own."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gradleak.auditing import Plan, build_plan, catalog, load_plan, train_generator
from gradleak.auditing.fingerprint import fingerprint
from gradleak.core import HonestButCurious, ImageGenerator
from gradleak.models.generators import trained_generator
from gradleak.results import PlanError
from tests.auditing.conftest import SMALL_PLAN
from tests.auditing.generator_models import TinyGenerator, made_elsewhere

OWN: dict[str, Any] = {
    "use": "own_generator",
    "module": {"use": "tests.auditing.generator_models:TinyGenerator", "width": 5},
    "latent_shape": [3],
    "channels": 1,
    "height": 8,
    "width": 8,
    "source": "sketches of digits",
}


def plan_with(folder: Path, **generator: Any) -> Plan:
    content = tomllib.loads(SMALL_PLAN) | {"threat": {"use": "HonestButCurious", "generator": generator}}
    return build_plan(content, folder=folder)


def generator_of(plan: Plan) -> ImageGenerator:
    assert isinstance(plan.site.threat, HonestButCurious)
    assert plan.site.threat.generator is not None
    return plan.site.threat.generator


def test_a_plan_names_a_module_and_its_weights_beside_the_plan(tmp_path: Path) -> None:
    trained = TinyGenerator(width=5)
    save_file(trained.state_dict(), tmp_path / "tiny.safetensors")
    plan = plan_with(tmp_path, **OWN, weights="tiny.safetensors")
    made = generator_of(plan)
    latents = made.draw(2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(made(latents), trained(latents))
    knowledge = plan.site.knowledge(plan.site.scenarios[0], 0)
    card = knowledge.card()["generator"]
    assert (card["source"], card["latent_shape"]) == ("sketches of digits", [3])
    assert (card["weights"], card["training_images"]) == (404, None)


@pytest.mark.parametrize("normalized", [False, True])
def test_a_plan_that_audits_training_images_is_refused_before_anything_runs(tmp_path: Path, normalized: bool) -> None:
    file = tmp_path / "training.toml"
    file.write_text(TRAINING, encoding="utf-8")
    train_generator(file).save(tmp_path / "g.safetensors")
    # 24 of the same digits are drawn as for the training, and one more.
    data: dict[str, Any] = {"use": "tests.auditing.generator_models:digits_seen", "normalized": normalized}
    content = tomllib.loads(SMALL_PLAN) | {"scenarios": [{"name": "s"}], "model": {"use": "lenet_i2f"}, "data": data}
    content["threat"] = {"use": "HonestButCurious", "generator": {"use": "trained_generator", "path": "g.safetensors"}}
    with pytest.raises(
        PlanError,
        match=r"^threat\.generator: expected .* 24 training images hold 1 of the 1 \(example 0 of the batch\)",
    ):
        build_plan(content, folder=tmp_path)
    content["data"] = data | {"seen": False}
    plan = build_plan(content, folder=tmp_path)
    card = plan.site.knowledge(plan.site.scenarios[0], 0).card()["generator"]
    assert card["training_images"] == 24


def test_a_plan_names_what_was_trained_here_and_what_was_not(tmp_path: Path) -> None:
    file = tmp_path / "training.toml"
    file.write_text(TRAINING, encoding="utf-8")
    train_generator(file).save(tmp_path / "folder" / "g.safetensors")
    shape = {"scenarios": [{"name": "s"}], "data": {"use": "mnist_digits", "count": 1}}
    content = tomllib.loads(SMALL_PLAN) | shape | {"model": {"use": "lenet_i2f"}}
    for spec in ({"use": "trained_generator", "path": "folder/g.safetensors"}, DCGAN):
        threat = {"use": "HonestButCurious", "generator": spec}
        plan = build_plan(content | {"threat": threat}, folder=tmp_path)
        assert plan.site.knowledge(plan.site.scenarios[0], 0).generator is not None
    one, two = (
        generator_of(build_plan(content | {"threat": threat, "seed": seed}, folder=tmp_path)).weights for seed in (1, 2)
    )
    assert not torch.equal(one["layers.1.weight"], two["layers.1.weight"])


DCGAN = {"use": "untrained_dcgan", "size": 28, "channels": 1, "width": 4}

TRAINING = """
seed = 4

[data]
use = "mnist_digits"
count = 24

[training]
use = "train_vae"
data = "24 digits"
license = "CC BY-SA 3.0"
decoder = "mlp"
latent_size = 2
width = 4
steps = 3
batch_size = 8
"""


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        ({"use": "mlp", "features": 3, "classes": 64}, "an ImageGenerator, and it says that it returns a Sequential"),
        (OWN | {"latent": 3}, "threat.generator: unknown key 'latent'; did you mean 'latent_shape'"),
        (OWN | {"height": 9}, "threat.generator: ImageGenerator: expected floating point images of shape (4, 1, 9, 8)"),
        (OWN | {"module": "TinyGenerator"}, "threat.generator.module: "),
        (OWN | {"weights": "no.safetensors"}, "no.safetensors: expected an existing .safetensors file"),
        ({"use": "trained_generatr", "path": "x"}, "nothing is called 'trained_generatr'; did you mean 'trained_generator'"),
        ({"use": "trained_generator", "path": "x.pkl"}, "x.pkl: expected the .safetensors file that `gradleak train-generator` "),
        ({"use": "trained_generator", "path": "x.safetensors"}, "facts beside it (x.json), got no such file; bring weights"),
        ({"path": "x.safetensors"}, "threat.generator: expected a table with a key 'use' such as { use = 'trained_generator', "
         "path = 'digits.safetensors' }, got a table with path"),
    ],
    ids=["model", "key", "size", "text", "weights", "name", "pickle", "missing", "without use"],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_line(generator: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        plan_with(tmp_path, **generator)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_alone_is_no_generator(tmp_path: Path) -> None:
    content = tomllib.loads(SMALL_PLAN) | {"threat": {"use": "HonestButCurious", "generator": "digits.safetensors"}}
    with pytest.raises(PlanError, match=r"such as \{ use = 'trained_generator', .* got the text 'digits.safetensors'"):
        build_plan(content, folder=tmp_path)


def test_what_a_part_of_an_attack_is_called_has_to_stand_after_use(tmp_path: Path) -> None:
    content = tomllib.loads(SMALL_PLAN)
    content["attacks"]["gauss_newton"]["steps"] = "KrylovSteps"
    with pytest.raises(
        PlanError, match=r"gauss_newton.steps: expected a table with a key 'use' such as .* 'KrylovSteps'"
    ):
        build_plan(content, folder=tmp_path)


def test_a_user_s_own_function_may_return_one(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, use="tests.auditing.generator_models:made_elsewhere")
    assert generator_of(plan).source == "a function of one's own"


def test_a_generator_of_another_size_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match=r"threat\.generator: .* of examples of shape \(1, 8, 8\), got one of shape \(1, 9"
    ):
        plan_with(tmp_path, use="tests.auditing.generator_models:made_elsewhere", side=9)


def test_the_catalog_lists_generators_by_what_they_make() -> None:
    entries = catalog()["generators"]
    assert {"own_generator", "trained_generator", "mnist_vae_decoder", "taef2_decoder", "untrained_dcgan"} <= set(
        entries
    )
    assert all(entry.summary for entry in entries.values())
    assert not [name for name in entries if name.startswith("train_")]


def test_a_training_file_says_all(tmp_path: Path) -> None:
    file = tmp_path / "training.toml"
    file.write_text(TRAINING, encoding="utf-8")
    steps: list[int] = []
    one = train_generator(file, progress=lambda done, steps_, words_: steps.append(done))
    two = train_generator(file)
    assert steps == [1, 2, 3]
    assert one.facts == two.facts
    # The file's seed, from which the trainer's own is derived.
    assert one.facts["plan_seed"] == 4 != one.facts["seed"]
    assert one.facts["network"] == {"use": "MLPDecoder", "size": 28, "channels": 1, "latent_size": 2, "width": 4}
    one.save(tmp_path / "g.safetensors")
    made = trained_generator(tmp_path / "g.safetensors")
    latents = made.draw(2, torch.Generator().manual_seed(0))
    assert torch.equal(made(latents), two.generator(latents))
    assert made.source == "VAE trained on 24 images for 3 steps: 24 digits; CC BY-SA 3.0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("steps =", "step ="), "training: unknown key 'step'; did you mean 'steps'"),
        (("train_vae", "train_vea"), "training: unknown trainer 'train_vea'; did you mean 'train_vae'"),
        (("[training]", "[train]"), "unknown key 'train'; did you mean 'training'"),
        (("seed = 4", "seed = 'x'"), "seed: "),
        (("mnist_digits", "adult_files"), "data: "),
        (("steps = 3", "steps = 3\nprogress = 1"), "training: unknown key 'progress'"),
        (('license = "CC BY-SA 3.0"\n', ""), "training: expected license too"),
        (("[data]", "[data"), "not valid TOML"),
        (("seed = 4", "scenarios = []"), "training.toml: expected a training file, got the plan of an audit"),
        (("batch_size = 8", "batch_size = 80"), "training: batch_size: expected at most 24"),
    ],
    ids=["key", "trainer", "section", "seed", "data", "progress", "license", "toml", "plan", "batch"],
)
def test_a_training_file_that_is_wrong_is_one_clear_line(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "training.toml"
    file.write_text(TRAINING.replace(*change), encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        train_generator(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_training_file_is_read_whole_before_its_data(tmp_path: Path) -> None:
    file = tmp_path / "training.toml"
    broken = TRAINING.replace('use = "mnist_digits"', 'use = "tests.auditing.generator_models:no_such_data"')
    for change, message in ((('license = "CC BY-SA 3.0"\n', ""), "license"), (("steps = 3", "steps = 'x'"), "steps")):
        file.write_text(broken.replace(*change), encoding="utf-8")
        with pytest.raises(PlanError, match=f"^training.*{message}"):
            train_generator(file)
    file.write_text(broken, encoding="utf-8")
    with pytest.raises(PlanError, match=r"^data: "):
        train_generator(file)


def test_a_missing_training_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected a training file"):
        train_generator(tmp_path / "nowhere.toml")


def test_the_example_file_is_one(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "digits_generator.toml"
    small = example.read_text(encoding="utf-8").replace("steps = 1500", "steps = 1").replace("4000", "40")
    (tmp_path / "example.toml").write_text(small, encoding="utf-8")
    assert train_generator(tmp_path / "example.toml").facts["network"]["use"] == "ConvDecoder"


def test_the_example_audits_digits_that_its_generator_never_saw(tmp_path: Path) -> None:
    """Two files that belong together: `make prior` trains by one and audits by the other."""
    examples = Path(__file__).parents[2] / "examples"
    training = (examples / "digits_generator.toml").read_text(encoding="utf-8").replace("steps = 1500", "steps = 1")
    for folder in ("examples", "runs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "examples" / "training.toml").write_text(training, encoding="utf-8")
    train_generator(tmp_path / "examples" / "training.toml").save(tmp_path / "runs" / "digits.safetensors")
    plan = (examples / "digits_prior.toml").read_text(encoding="utf-8")
    (tmp_path / "examples" / "plan.toml").write_text(plan, encoding="utf-8")
    loaded = load_plan(tmp_path / "examples" / "plan.toml")
    prints = generator_of(loaded).training_images
    assert prints is not None
    assert len(prints) == 4000
    assert [batch.size for batch in loaded.site.batches] == [1, 1, 1]
    assert {type(attack).__name__ for audit in loaded.audits for attack in getattr(audit, "attacks", {}).values()} == {
        "InvertingGradients",
        "GIAS",
        "GGL",
    }
    (tmp_path / "examples" / "plan.toml").write_text(plan.replace("first = 4000", "last = 4000"), encoding="utf-8")
    with pytest.raises(PlanError, match=r"4,000 training images hold .*`first` and `last`"):
        load_plan(tmp_path / "examples" / "plan.toml")


def test_plans_without_one_know_none(small_plan: Path) -> None:
    plan = load_plan(small_plan)
    assert plan.site.knowledge(plan.site.scenarios[0], 0).generator is None


def test_a_run_knows_its_generator_by_its_weights() -> None:
    made = made_elsewhere()
    other = made.with_weights({name: tensor + 1e-3 for name, tensor in made.weights.items()})
    twin = made.with_weights(made.weights)
    assert fingerprint(HonestButCurious(generator=made)) == fingerprint(HonestButCurious(generator=twin))
    assert fingerprint(HonestButCurious(generator=made)) != fingerprint(HonestButCurious(generator=other))

"""Reference pages of large packages, a hook of MkDocs: one page a subject, and a map of all names on the package's page.

`mkdocs.yml` names this file under `hooks`. Names come from `__all__` of the package, without importing it; each stands on the
page of the subject whose modules have it, and names of further modules on a page of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src"
FURTHER = "Further names"

# The page of a package: subjects and the modules of each, relative to the package. The first that fits counts.
SUBJECTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "attacks": {
        "Attacks and what they claim": ("attack", "blind", "rounds"),
        "Levenberg-Marquardt": ("inversion.gauss_newton",),
        "Layer by layer": ("inversion.peel",),
        "Solved from the first layer": ("inversion.analytic",),
        "Inversion composed by hand": (
            "inversion.engine",
            "inversion.evaluation",
            "inversion.problem",
            "inversion.reading",
        ),
        "Presets of papers": (
            "inversion.dlg",
            "inversion.inverting_gradients",
            "inversion.grad_inversion",
            "inversion.dlfa",
        ),
        "Distances of updates": ("inversion.matching",),
        "Unknowns": ("inversion.variables",),
        "Priors": ("inversion.priors",),
        "Optimizers": ("inversion.optimizers", "inversion.populations"),
        "Behind a generator": ("inversion.generative", "inversion.giml"),
        "Latents": ("inversion.latents",),
        "Checks of a claim": ("inversion.invention", "inversion.assumed_protocol"),
        "Labels": ("labels",),
        "Text": ("text", "inversion.lamp", "inversion.tag", "inversion.embeddings"),
        "Features of gradients": ("inference.features",),
        "Classifiers of gradients": ("inference.classifier", "inference.estimator", "inference.gaussian"),
        "Ordinal and prototype adversaries": ("inference.ordinal", "inference.prototype"),
    },
    "risk": {
        "Measures": ("measure", "setting_measure"),
        "I²F and its bounds": ("influence", "perfect_attacker", "directions"),
        "Errors under noise": ("cramer_rao", "bayesian_cramer_rao"),
        "Priors and probability": ("posterior", "reconstruction_probability"),
        "LAVP and Lipschitz bound": ("vulnerability", "largest_eigenvalue"),
        "Rank by layer": ("peel_rank",),
        "Tokens": ("token_error",),
        "A server's model": ("server_model",),
        "Measures of layers": ("layer_measure", "layer_profile"),
        "Exposed layers and advice": ("layer_exposure", "layer_advice"),
        "Sensitivity of layers": ("sensitivity", "subspace_distance"),
        "Mutual information": ("mutual_information",),
        "Information in layers": ("v_information",),
    },
    "core": {
        "Batch": ("batch", "domain"),
        "Vocabulary": ("vocabulary", "token_tables"),
        "Objective": ("objective", "evaluation", "batch_norm", "trainable", "example_gradients"),
        "Release and protocol": ("release", "protocol"),
        "Exposure and course": ("exposure", "course"),
        "Defenses": ("defense", "effect", "mechanism", "bounds"),
        "Update": ("update", "precision"),
        "Knowledge and threat model": ("knowledge", "threat_model", "sealed", "reconstruction"),
        "Generators of images": ("image_generator", "image_prints"),
        "Randomness and descriptions": ("randomness", "describe", "process", "installed"),
    },
    "privacy": {
        "Audits of epsilon": ("privacy_audit", "attribute_audit", "membership_audit", "theory"),
        "Pairs of hypotheses": ("released", "result"),
        "Canaries": ("canary",),
        "Lower bounds": ("lower_bounds",),
    },
    "defenses": {
        "Clipping and DP-SGD": ("clip",),
        "Noise": ("noise",),
        "Compression": ("sparse", "quantize"),
        "Defenses in the model or of its data": ("adversarial_perturbation", "variational_bottleneck"),
        "Self-test": ("self_test",),
    },
    "results": {
        "Records": ("record", "record_writer", "kinds"),
        "Findings": ("finding",),
        "Scores": ("score",),
        "Verdicts and policy": ("verdict", "policy"),
        "Errors": ("errors",),
        "Settings": ("settings", "fields"),
        "Sources": ("citation",),
    },
    "auditing": {
        "One call": ("api", "budget", "default_plan"),
        "Plans": ("plan", "plan_file", "plan_reader", "catalog", "generator_file"),
        "Runs": ("run", "executor", "shard", "merge", "sent", "verdicts", "cautions"),
        "Gate": ("leak_gate",),
        "Parts of a plan": ("gradleak.audits.base", "gradleak.results"),
    },
    "scoring": {
        "Images and rows": ("image", "reconstruction", "claims", "pairing"),
        "Luck": ("chance",),
        "Perception": ("perceptual",),
        "Sentences": ("text",),
        "Posteriors": ("classification", "pooling"),
    },
    "linalg": {
        "Operators": ("operator",),
        "Solvers": ("choice", "solvers"),
        "Eigenvalues": ("block_lanczos", "lobpcg"),
        "Traces": ("trace",),
    },
    "training": {
        "Federated training": ("federated", "task", "metric", "layers"),
        "Releases of many batches": ("releases", "trajectory"),
    },
    "data": {
        "Tables": ("table", "column"),
        "Populations": ("population", "split"),
    },
    "models": {
        "Networks for images": ("small", "pooled_convnets", "resnet", "initialize"),
        "Networks for text": ("minilm", "text_classifier", "transformer", "huggingface"),
    },
    "models.generators": {
        "Trained generators": ("trained", "training"),
        "Decoders": ("decoders",),
        "Untrained generators": ("untrained",),
    },
    "operators": {
        "Jacobians of updates": ("gradient_jacobian", "dense_jacobian", "lockstep", "linearization", "pullback"),
        "Routes and checks of derivatives": ("routes", "finite_difference", "derivative_check"),
    },
    "datasets": {
        "Digits and files of images": ("digits", "files", "synthetic"),
        "Files of your own": ("own_files",),
        "Adult census": ("adult",),
        "Sentences": ("text", "sentences"),
    },
    "games": {
        "Games": ("game", "value_game", "distribution", "user", "reading"),
        "Results of games": ("result", "information"),
    },
}


class Name(NamedTuple):
    """An exported name: where it is defined, relative to the package, and the first line of its docstring."""

    name: str
    module: str
    summary: str


@cache
def _tree(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


def _origin(module: str, name: str) -> str:
    """The module that defines a name which a module has."""
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module and any((a.asname or a.name) == name for a in node.names):
            return _origin(node.module, name)
    return module


def _summary(module: str, name: str) -> str:
    body = _tree(module).body
    for place, node in enumerate(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            if isinstance(value := getattr(node, "value", None), ast.Call):
                # A source has no docstring, and says itself what it is.
                return next((str(ast.literal_eval(one.value)) for one in value.keywords if one.arg == "title"), "")
            after = body[place + 1] if place + 1 < len(body) else None
            told = after.value if isinstance(after, ast.Expr) else None
            return str(told.value).partition("\n")[0] if isinstance(told, ast.Constant) else ""
    return ""


def exports(package: str) -> list[Name]:
    """The names that a package exports, in the order of the alphabet.

    Args:
        package: its name in `gradleak`.
    """
    whole = f"gradleak.{package}"
    listed = next(
        ast.literal_eval(node.value)
        for node in _tree(whole).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    )
    found = []
    for name in sorted(listed, key=str.lower):
        module = _origin(whole, name)
        found.append(Name(name, module.removeprefix(f"{whole}."), _summary(module, name)))
    return found


def pages(package: str) -> dict[str, list[Name]]:
    """The names of a package by subject; each stands on one page.

    Args:
        package: one of `SUBJECTS`.
    """
    subjects = SUBJECTS[package]
    found: dict[str, list[Name]] = {subject: [] for subject in subjects}
    for one in exports(package):
        fits = (subject for subject, modules in subjects.items() if any(_within(one.module, m) for m in modules))
        found.setdefault(next(fits, FURTHER), []).append(one)
    return {subject: names for subject, names in found.items() if names}


def _within(module: str, parent: str) -> bool:
    return module == parent or module.startswith(f"{parent}.")


def home(package: str) -> str:
    """The name of a package's own page, without its folder.

    Args:
        package: one of `SUBJECTS`.
    """
    return package.rpartition(".")[2]


def _file(package: str, subject: str) -> str:
    slug = "".join(one if one.isalnum() and one.isascii() else "-" for one in subject.lower())
    return f"reference/{home(package)}/{'-'.join(part for part in slug.split('-') if part)}.md"


def _page(package: str, subject: str, names: Iterable[Name]) -> str:
    options = "\n    options:\n      show_root_heading: true\n      heading_level: 2\n"
    if subject in _WITHOUT_VALUES:
        options += "      show_attribute_values: false\n"
    objects = "\n".join(f"::: gradleak.{package}.{one.name}{options}" for one in names)
    return f"# {subject}\n\nOf `gradleak.{package}`; [all its names](../{home(package)}.md).\n\n{objects}"


def _map(package: str) -> str:
    """All names of a package by page, each with what it is."""
    whole = f"gradleak.{package}"
    text = [ast.get_docstring(_tree(whole)) or ""]
    for subject, names in pages(package).items():
        rows = [f"| [`{one.name}`][{whole}.{one.name}] | {one.summary.replace('|', chr(92) + '|')} |" for one in names]
        file = _file(package, subject).removeprefix("reference/")
        text += [f"## [{subject}]({file})", "\n".join(["| Name | Meaning |", "| --- | --- |", *rows])]
    return "\n\n".join(text)


def on_config(config: Any) -> Any:
    """Put the pages of each package below it in the navigation."""
    for section in config.nav:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [_with_pages(entry) for entry in entries]
    return config


def _with_pages(entry: Any) -> Any:
    ((title, file),) = entry.items() if isinstance(entry, dict) else (("", entry),)
    package = _PAGES.get(str(file))
    if package is None:
        return entry
    return {title: [file, *({subject: _file(package, subject)} for subject in pages(package))]}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    for package in SUBJECTS:
        for subject, names in pages(package).items():
            files.append(File.generated(config, _file(package, subject), content=_page(package, subject, names)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the map of its names on the page of a package."""
    package = _PAGES.get(page.file.src_uri)
    return markdown if package is None else f"{markdown}\n\n{_map(package)}\n"


_PAGES = {f"reference/{home(package)}.md": package for package in SUBJECTS}
# Of which the docstrings say all.
_WITHOUT_VALUES = frozenset({"Sources"})

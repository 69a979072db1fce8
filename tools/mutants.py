"""Mutations of core formulas: each must be caught by the narrow tests that are named beside it.

Run as `python -m tools.mutants` (`make mutants`). The working tree stays as it is: mutations are made in a temporary copy.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "tools", "studies", "examples", "pyproject.toml")


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A small change of a formula that makes it wrong.

    Attributes:
        file: below src/gradleak.
        old: text that occurs there exactly once.
        new: what stands in its place.
        tests: arguments of pytest that should fail then, files below tests/ and perhaps `-k WORDS`.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """File and change, in a line."""
        return f"{self.file}: {self.old.strip()} -> {self.new.strip()}"

    def check(self, root: Path = ROOT) -> str:
        """The reason why the mutation cannot be made, or nothing."""
        text = (root / "src" / "gradleak" / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            return f"{self.file}: expected {self.old!r} once, found it {found} times"
        missing = [word for word in self.tests if word.endswith(".py") and not (root / "tests" / word).exists()]
        return f"{self.file}: no tests {', '.join(missing)}" if missing else ""


def _one(file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(file=file, old=old, new=new, tests=tests)


MUTATIONS: tuple[Mutation, ...] = (
    # Closed forms
    _one("risk/influence.py", "(coefficients[kept] / values[kept])", "(coefficients[kept] / values[kept].sqrt())",
         "risk/test_influence.py", "-k", "reference or rank"),
    _one("risk/influence.py", "(coefficients / (values + self.epsilon))", "(coefficients / (values + self.epsilon**2))",
         "risk/test_influence.py"),
    _one("risk/influence.py", "value = numerator / (largest + self.epsilon)", "value = numerator / largest",
         "risk/test_influence.py", "-k", "lower_bound"),
    _one("risk/influence.py", "return _norm(scale * moved) / math.sqrt(moved.numel())", "return _norm(scale * moved)",
         "risk/test_influence.py", "-k", "pixel"),
    _one("risk/cramer_rao.py", "value = self.std * self.std * float((1 / spectrum.values[kept]).sum())",
         "value = self.std * float((1 / spectrum.values[kept]).sum())", "risk/test_cramer_rao.py"),
    _one("risk/cramer_rao.py", "math.sqrt(found.value) / self.std", "found.value / self.std", "risk/test_fisher.py"),
    _one("risk/vulnerability.py", "(mu_release * norm + 2 * mu_jacobian * perturbed)",
         "(mu_release * norm + mu_jacobian * perturbed)", "risk/test_lipschitz_bound.py"),
    _one("risk/vulnerability.py", "zero, factor = zero_threshold(gram), 2.0", "zero, factor = zero_threshold(gram), 1.0",
         "risk/test_vulnerability.py", "-k", "reference"),
    _one("risk/vulnerability.py", "value = math.sqrt(largest.value * smallest.value)",
         "value = largest.value * smallest.value", "risk/test_vulnerability.py", "-k", "fusion"),
    _one("risk/posterior.py", "posterior_factor(operator.gram() / self.noise_std**2, whole)",
         "posterior_factor(operator.gram() / self.noise_std, whole)", "risk/test_posterior.py"),
    _one("risk/bayesian_cramer_rao.py", "half, information = self.samples // 2, noise_std**-2",
         "half, information = self.samples // 2, 1 / noise_std", "risk/test_bayesian_cramer_rao.py"),
    _one("risk/bayesian_cramer_rao.py", "above * degrees / quantile", "above * quantile / degrees",
         "risk/test_bayesian_cramer_rao.py"),
    _one("risk/reconstruction_probability.py", "float(scipy.special.ndtr(mu + scipy.special.ndtri(kappa)))",
         "float(scipy.special.ndtr(mu - scipy.special.ndtri(kappa)))",
         "risk/test_reconstruction_probability.py"),
    _one("risk/reconstruction_probability.py", "math.sqrt(self.rounds * mechanism.steps)", "(self.rounds * mechanism.steps)",
         "risk/test_reconstruction_probability.py"),
    _one("risk/token_error.py", "/ (4 * std**2)", "/ (2 * std**2)", "risk/test_token_error.py"),
    _one("risk/sensitivity.py", "return float(torch.stack(parts).sum().sqrt())", "return float(torch.stack(parts).sum())",
         "risk/test_sensitivity.py"),
    _one("risk/subspace_distance.py", "p_value = (1 + reached) / (1 + self.permutations)",
         "p_value = reached / self.permutations", "risk/test_subspace_distance.py"),
    _one("linalg/operator.py", "return 2.0 * eps * condition**0.5 if of_factor", "return eps * condition if of_factor",
         "risk/test_influence.py", "-k", "ill_conditioned"),
    # Information
    _one("risk/v_information/latent_information.py", "tempered = exponent * (log_posteriors - np.log(law))",
         "tempered = exponent * log_posteriors - np.log(law)", "risk/v_information/test_latent_information.py"),
    _one("risk/v_information/latent_information.py", "share = values / (values + count *", "share = 1 / (1 + count *",
         "risk/v_information/test_latent_information.py"),
    _one("risk/v_information/original_information.py", "SIGMA = 1.0 / (2.0 * math.pi)", "SIGMA = 1.0 / math.pi",
         "risk/v_information/test_original_information.py"),
    _one("risk/neighbors.py", "- np.mean(scipy.special.digamma(near[0]) + scipy.special.digamma(near[1]))",
         "- np.mean(scipy.special.digamma(near[0] + 1) + scipy.special.digamma(near[1] + 1))",
         "risk/mutual_information/test_neighbors.py"),
    _one("risk/neighbors.py", "math.pow(_FACTOR, point - 1 + share)", "math.pow(_FACTOR, point)",
         "risk/mutual_information/test_neighbors.py"),
    _one("risk/mutual_information.py", "return float(matched.mean() - level), ", "return float(matched.mean() + level), ",
         "risk/mutual_information/test_mine.py"),
    _one("games/information.py", "error * math.log(classes - 1) - unknown", "error * math.log(classes) - unknown",
         "games/test_information.py"),
    _one("games/information.py", "math.log1p((norm / std) ** 2 / size)", "math.log1p((norm / std) ** 2)",
         "games/test_information.py"),
    _one("games/information.py", "    tempered = exponent * evidence_of\n", "    tempered = evidence_of\n",
         "games/test_information.py"),
    # Attacks
    _one("attacks/labels/solved.py", "mean = head.probabilities.mean(dim=0)", "mean = head.probabilities.median(dim=0).values",
         "attacks/labels/test_counts.py"),
    _one("attacks/labels/counting.py", "return torch.maximum(total * probabilities, implied).clamp(min=0)",
         "return implied.clamp(min=0)", "attacks/labels/test_rounding.py"),
    _one("attacks/inference/classifier.py", "normalized(logs[list(seen)].sum(axis=0) + prior)",
         "normalized(logs[list(seen)].mean(axis=0) + prior)", "attacks/inference/test_combine_rounds.py"),
    _one("attacks/inference/prototype.py", "np.linalg.norm(among - seen[:, None, :], axis=2)",
         "np.square(among - seen[:, None, :]).sum(axis=2)", "attacks/inference/test_prototype.py"),
    _one("attacks/inference/ordinal.py", "* _clipped(differences) + 1.0", "* _clipped(differences) + 0.5",
         "attacks/inference/test_ordinal.py"),
    _one("attacks/inversion/matching.py", "return torch.where(nothing, 1.0, 0.5 * (direction - unit).square().sum())",
         "return torch.where(nothing, 1.0, (direction - unit).square().sum())", "attacks/inversion/test_matching.py"),
    _one("attacks/inversion/latents.py", "(mean.square() + variance - 1 - (variance + _SMALLEST).log())",
         "(mean.square() + variance - (variance + _SMALLEST).log())", "attacks/inversion/test_latents.py"),
    _one("attacks/inversion/priors.py", "guess.inputs.diff(dim=axis).abs().mean()", "guess.inputs.diff(dim=axis).abs().sum()",
         "attacks/inversion/test_priors.py"),
    _one("attacks/inversion/optimizers.py", "mean = self.first / (1 - low**self.count)[:, None]", "mean = self.first",
         "attacks/inversion/test_optimizers.py"),
    # Defenses and protocols
    _one("defenses/clip.py", "bites = squared > (max_norm * inverse) ** 2", "bites = squared > max_norm * inverse",
         "defenses/test_clip.py", "defenses/test_clip_extremes.py"),
    _one("defenses/clip.py", "self.noise_std * (math.sqrt(examples) if", "self.noise_std * (examples if",
         "defenses/test_dp_sgd.py"),
    _one("defenses/clip.py", "return self.sum_std(examples) / self.divisor(examples)", "return self.sum_std(examples)",
         "defenses/test_dp_sgd.py"),
    _one("defenses/sparse.py", "factor = 1 / share - 1 if self.unbiased", "factor = 1 / share if self.unbiased",
         "defenses/test_random_sparsify.py"),
    _one("defenses/noise.py", "torch.full_like(tensor, 2 * self.scale**2)", "torch.full_like(tensor, self.scale**2)",
         "defenses/test_laplace_noise.py"),
    _one("protocols/fed_avg.py", "kept = 1.0 if step == 0 or not self.momentum else 1 - self.dampening",
         "kept = 1 - self.dampening", "protocols/test_fed_avg.py"),
    _one("protocols/fed_avg.py", "unbias = rate / (1 - self.beta1**step), (1 - self.beta2**step) ** 0.5",
         "unbias = rate / (1 - self.beta1**step), (1 - self.beta2**step)", "protocols/test_local_adam.py"),
    _one("protocols/average_gradient.py", "tensors = {name: tensor - decay *", "tensors = {name: tensor + decay *",
         "protocols/test_average_gradient.py"),
    # Epsilon
    _one("accounting/epsilon.py", "math.sqrt(2 * math.log(1.25 / delta))", "math.sqrt(math.log(1.25 / delta))",
         "accounting/test_epsilon.py"),
    _one("accounting/epsilon.py", "mechanism.sensitivity * (2 if self.adjacency is Adjacency.REPLACE else 1)",
         "mechanism.sensitivity", "accounting/test_epsilon.py"),
    _one("privacy/lower_bounds/thresholds.py", "fpr, fnr = false / len(null), (len(alternative) - true) / len(alternative)",
         "fpr, fnr = false / len(null), true / len(alternative)", "privacy/lower_bounds/test_plug_in.py"),
    _one("privacy/lower_bounds/gaussian_fit.py", "most = mu * (mu / 2.0 - float(scipy.special.ndtri(delta)))",
         "most = mu * (mu / 2.0 + float(scipy.special.ndtri(delta)))", "privacy/lower_bounds/test_gaussian_fit.py"),
    _one("privacy/lower_bounds/one_run.py", "max(0.0, shrink * (mass - delta), 1.0 - delta - grow * (1.0 - mass))",
         "max(0.0, shrink * mass, 1.0 - delta - grow * (1.0 - mass))", "privacy/lower_bounds/test_one_run.py"),
    # Scores
    _one("scoring/roc.py", "scipy.stats.beta.ppf(half, successes, trials - successes + 1.0)",
         "scipy.stats.beta.ppf(half, successes, trials - successes)", "scoring/test_intervals.py"),
    _one("scoring/roc.py", "np.where(positive, len(scores) / ones, len(scores) / zeros)",
         "np.where(positive, len(scores) / zeros, len(scores) / ones)", "scoring/test_intervals.py"),
    _one("scoring/image.py", "return -10.0 * torch.log10(mse(claims, truths))", "return -20.0 * torch.log10(mse(claims, truths))",
         "scoring/test_image.py"),
    _one("scoring/image.py", "structure = (2 * covariance + c2) /", "structure = (covariance + c2) /", "scoring/test_image.py"),
    _one("scoring/classification.py", "shares: Floats = best / best.sum(axis=1, keepdims=True)",
         "shares: Floats = best.astype(np.float64)", "scoring/test_classification.py", "-k", "not cover and not leaks"),
    _one("scoring/classification.py", "(float((end - blind) / (1.0 - blind)) for end in success.interval)",
         "(float(end - blind) for end in success.interval)", "scoring/test_classification.py", "-k", "not cover and not leaks"),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Apply every mutation in a temporary copy, run its tests, and list those that survive; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations with one of these words in their file or text")
    parser.add_argument("--trust", action="store_true", help="do not run the tests on the code as it is first")
    given = parser.parse_args(arguments)
    asked = given.words
    chosen = [one for one in MUTATIONS if not asked or any(word in one.name for word in asked)]
    wrong = [why for one in chosen if (why := one.check())]
    if wrong or not chosen:
        _say("\n".join(wrong) or "no mutation has one of these words")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "checkout"
        place.mkdir()
        # Reference values lie beside a checkout; without them the tests that compare with them are skipped.
        if (references := ROOT.parent / "shared").exists():
            (Path(folder) / "shared").symlink_to(references)
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, place / name)
        _load()
        if not given.trust:
            _say(f"the tests of {len(chosen)} mutations, on the code as it is")
            if _run(sorted({word for one in chosen for word in one.tests if word.endswith(".py")}), place) != 0:
                _say("they do not pass, so that nothing can be said of mutations")
                return 2
        survivors = [
            one for number, one in enumerate(chosen, 1) if not _is_caught(one, place, f"{number}/{len(chosen)}")
        ]
    _say(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations are caught")
    for one in survivors:
        _say(f"survived: {one.name}")
    return 1 if survivors else 0


def _load() -> None:
    """Import what every test needs and no mutation touches."""
    for name in ("torch", "scipy.stats", "sklearn.ensemble", "matplotlib.figure", "pydantic"):
        importlib.import_module(name)


def _is_caught(mutation: Mutation, place: Path, count: str) -> bool:
    """True if its tests, which pass without it, fail with it."""
    file = place / "src" / "gradleak" / mutation.file
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        code = _run(mutation.tests, place)
    finally:
        file.write_text(text, encoding="utf-8")
    word = {0: "SURVIVED", 1: "caught"}.get(code, f"its tests do not run (pytest ends with {code})")
    _say(f"{count} {word}: {mutation.name}")
    return code == 1


def _run(words: Sequence[str], place: Path) -> int:
    """The exit status of pytest in a process of its own: 0 where all tests pass, 1 where one fails."""
    # Forked from one that has loaded what takes seconds, but nothing of gradleak.
    process = multiprocessing.get_context("fork").Process(target=_pytest, args=(words, place))
    process.start()
    process.join()
    return process.exitcode if process.exitcode is not None and process.exitcode >= 0 else 3


def _pytest(words: Sequence[str], place: Path) -> None:
    os.chdir(place)
    sys.path[:0] = [str(place / "src"), str(place)]
    sys.dont_write_bytecode = True
    # Commands that tests start find the copy, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    tests = [f"tests/{word}" if word.endswith(".py") else word for word in words]
    os._exit(int(pytest.main(["-n", "0", "-q", "-x", "-p", "no:cacheprovider", *tests])))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

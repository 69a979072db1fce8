"""Matrix of attacks and defenses, for adversaries who know them and who do not, asked before anything runs."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from gradleak.attacks import Attack, Inversion
from gradleak.attacks.inversion.embeddings import Embeddings
from gradleak.attacks.labels.sign_rule import is_cross_entropy
from gradleak.auditing.catalog import catalog
from gradleak.audits.base import Adversary
from gradleak.core import (
    Batch,
    Defense,
    Domain,
    DomainKind,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    ModelDefense,
    Objective,
    Release,
    Vocabulary,
)
from gradleak.defenses import (
    DPSGD,
    AdversarialPerturbation,
    GaussianNoise,
    LayerNoise,
    NoiseOn,
    Quantize,
    SensitiveClassifier,
    Soteria,
    VariationalBottleneck,
)
from gradleak.models import Activation, initialize_default, mlp, transformer
from gradleak.protocols import FedSGD
from gradleak.results import InputError

FEATURES, HIDDEN, CLASSES = 6, 5, 3
WORDS, TOKENS, EMBEDDING = 24, 6, 12
WIDTH = 110

MARKS: Mapping[frozenset[Adversary], str] = {
    frozenset(Adversary): "+",
    frozenset({Adversary.ADAPTIVE}): "a",
    frozenset({Adversary.STATIC}): "s",
    frozenset(): "-",
}
MEANINGS: Mapping[str, str] = {
    "+": "static and adaptive",
    "a": "adaptive only",
    "s": "static only",
    "-": "refused",
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Result of one attack on one defense, or on one with noise behind it.

    Attributes:
        attack: the name of the attack's class.
        sentence: whether it meets a sentence, in place of a row of a table.
        defenses: the names of the defenses, as in `defenses()`, in the order in which they act.
        refused: why an adversary is refused, before anything is computed; those who are not run.
    """

    attack: str
    sentence: bool
    defenses: tuple[str, ...]
    refused: Mapping[Adversary, str]

    @property
    def runs(self) -> frozenset[Adversary]:
        """The adversaries for whom the attack runs."""
        return frozenset(Adversary) - set(self.refused)

    @property
    def mark(self) -> str:
        """One letter of `MEANINGS`."""
        return MARKS[self.runs]

    @property
    def case(self) -> str:
        """The attack, and what it meets."""
        return f"{self.attack} (sentence)" if self.sentence else self.attack

    @property
    def place(self) -> str:
        """The defenses in words."""
        return ", then ".join(self.defenses)


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallSetting:
    """A setting of a few dozen parameters in which a defense can stand.

    Attributes:
        objective: a sigmoid MLP with cross entropy, or an encoder of tokens, with a bottleneck where the defense is one.
        batch: one table row, or one sentence, its label and a sensitive value.
        release: one gradient, defended.
    """

    objective: Objective
    batch: Batch
    release: Release


@cache
def pairs() -> tuple[Pair, ...]:
    """Every attack on every defense, alone and, where that differs, with Gaussian noise behind it.

    Attacks on tokens meet a sentence, all others a row of a table, and those that search embeddings both. An attack is given
    all that it needs besides the defenses (`knowledge_for`), so that what is refused is refused for the defense. Order
    matters: what can be read backward at the end of a release may be out of reach behind noise.

    **Cost**: no gradient; some hundred forward passes of small networks, a second or two, once a process.
    """
    found = []
    for name in defenses():
        alone = _row((name,))
        found += alone
        noisy = _row((name, GaussianNoise.__name__))
        if [pair.mark for pair in noisy] != [pair.mark for pair in alone]:
            found += noisy
    return tuple(found)


def defenses() -> dict[str, Callable[[], Defense]]:
    """Factories of a small example of every defense of the catalog, for `small_setting`; some in a second setting."""
    kinds: dict[str, Callable[[], Defense]] = {
        name: partial(_example, entry.constructor) for name, entry in catalog()["defenses"].items()
    }
    return dict(sorted({**kinds, **_EXAMPLES, **_SECOND}.items()))


def _example(kind: Callable[..., Defense]) -> Defense:
    """An example of a defense whose required settings are numbers."""
    assert inspect.isclass(kind)
    hints = typing.get_type_hints(kind)
    given: dict[str, float | int] = {}
    for field in dataclasses.fields(typing.cast("typing.Any", kind)):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            if hints.get(field.name) not in _NUMBERS:
                raise InputError(
                    f"{kind.__name__}.{field.name}: expected an example of this defense in gradleak.auditing.compatibility, "
                    "got none, and it cannot be filled by its type; add one"
                )
            given[field.name] = _NUMBERS[hints[field.name]]
    return typing.cast("Defense", kind(**given))


def small_setting(*names: str, tokens: bool = False) -> SmallSetting:
    """A setting with the examples of these defenses, in the order in which they act; the same every time.

    Args:
        names: of `defenses()`.
        tokens: a sentence through an encoder, in place of a row of a table.
    """
    generator = torch.Generator().manual_seed(0)
    made = {**defenses(), **(_ON_TOKENS if tokens else {})}
    chosen = [made[name]() for name in names]
    in_model = next((defense for defense in chosen if isinstance(defense, ModelDefense)), None)
    network = partial(_encoder if tokens else partial(_mlp, FEATURES), generator=generator)
    if in_model is None:
        objective = Objective.from_module(network(CLASSES))
    else:
        decoder = partial(_decoder, generator=generator)
        defended = in_model.inserted(network(HIDDEN), decoder, features=HIDDEN, generator=generator)
        if defended is None:
            raise InputError(f"{type(in_model).__name__}.inserted: expected a model with this defense in it, got none")
        objective = Objective.from_module(defended[0], loss=defended[1], mode="train")
    inputs, domain = _sentence(generator) if tokens else _row_of_table(generator)
    batch = Batch(inputs, torch.tensor([1]), domain, sensitive=torch.tensor([1]))
    return SmallSetting(objective=objective, batch=batch, release=Release(FedSGD(), chosen))


def _row_of_table(generator: torch.Generator) -> tuple[torch.Tensor, Domain]:
    return torch.rand(1, FEATURES, generator=generator), Domain(shape=(FEATURES,), kind=DomainKind.TABULAR)


def _sentence(generator: torch.Generator) -> tuple[torch.Tensor, Domain]:
    """Different words between the first token and the last."""
    words = 3 + torch.randperm(WORDS - 3, generator=generator)[: TOKENS - 2]
    ids = torch.cat([torch.tensor([1]), words, torch.tensor([2])])[None]
    return ids, Domain.tokens(Vocabulary(size=WORDS, padding=0, special={1: 0, 2: -1}), TOKENS)


def _encoder(classes: int, *, generator: torch.Generator) -> torch.nn.Module:
    return transformer(
        words=WORDS, length=TOKENS, width=EMBEDDING, blocks=1, heads=2, classes=classes, std=0.2, generator=generator
    )


def knowledge_for(attack: Attack, setting: SmallSetting, adversary: Adversary) -> Knowledge:
    """Knowledge of an adversary who is given whatever else the attack needs.

    That is the labels, too, where the loss is not cross entropy, from whose gradient they could be read.
    """
    labels = "targets" in attack.needs or not is_cross_entropy(setting.objective.loss_name)
    threat = HonestButCurious(
        targets=labels,
        statistics="statistics" in attack.needs,
        generator=_generator() if "generator" in attack.needs else None,
    )
    return adversary.of(threat.facts(setting.objective, setting.release, setting.batch))


def as_text(found: Sequence[Pair]) -> str:
    """The matrix for a terminal: one line an attack, one numbered column a defense, and the reasons below."""
    places, cases = axes(found)
    width = max(map(len, cases))
    lines = ["attack x defense: " + ", ".join(f"{mark} {meaning}" for mark, meaning in MEANINGS.items())]
    lines.append(f"  {'':<{width}}" + "".join(f"{number:>3}" for number in range(1, len(places) + 1)))
    for case in cases:
        marks = [pair.mark for pair in found if pair.case == case]
        lines.append(f"  {case:<{width}}" + "".join(f"{mark:>3}" for mark in marks))
    columns = "; ".join(f"{number} {place}" for number, place in enumerate(places, 1))
    lines += textwrap.wrap(columns, width=WIDTH, initial_indent="  ", subsequent_indent="  ")
    for text in reasons(found, lambda place: str(places.index(place) + 1)):
        lines += textwrap.wrap(text, width=WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _row(names: tuple[str, ...]) -> list[Pair]:
    settings = {tokens: small_setting(*names, tokens=tokens) for tokens in (False, True)}
    found, known = [], dict[tuple[object, ...], Knowledge]()
    for (name, sentence), attack in attacks().items():
        reasons = {}
        for who in Adversary:
            # Attacks that need the same are told the same.
            key = (sentence, who, *(part in attack.needs for part in ("targets", "statistics", "generator")))
            if key not in known:
                known[key] = knowledge_for(attack, settings[sentence], who)
            reasons[who] = attack.refusal(known[key])
        refused = {adversary: reason for adversary, reason in reasons.items() if reason is not None}
        found.append(Pair(attack=name, sentence=sentence, defenses=names, refused=refused))
    return found


@cache
def attacks() -> Mapping[tuple[str, bool], Attack]:
    """Every attack of the catalog by its name and by whether it meets a sentence: rows first, then sentences."""
    made = {name: _attack(entry.constructor) for name, entry in catalog()["attacks"].items()}
    on_rows = {(name, False): attack for name, attack in made.items() if not attack.claims_tokens}
    on_sentences = {
        (name, True): _ON_SENTENCES.get(name, lambda attack=attack: attack)()
        for name, attack in made.items()
        if attack.claims_tokens or attack.claims_embeddings
    }
    return {**on_rows, **on_sentences}


def axes(found: Sequence[Pair]) -> tuple[list[str], list[str]]:
    """The places of defenses and the attacks with what they meet, in the order of the matrix."""
    return list(dict.fromkeys(pair.place for pair in found)), list(dict.fromkeys(pair.case for pair in found))


def reasons(found: Sequence[Pair], label: Callable[[str], str]) -> list[str]:
    """Every reason once, with those whom it concerns.

    Args:
        found: the matrix.
        label: how a place of defenses is named.
    """
    places, cases = axes(found)
    concerned: dict[tuple[Adversary, str], list[Pair]] = {}
    for pair in found:
        for adversary, reason in pair.refused.items():
            concerned.setdefault((adversary, reason), []).append(pair)
    texts = []
    for (adversary, reason), refused in concerned.items():
        where = list(dict.fromkeys(pair.place for pair in refused))
        who = list(dict.fromkeys(pair.case for pair in refused))
        on = "every defense" if len(where) == len(places) else ", ".join(map(label, where))
        rest = [case for case in cases if case not in who]
        by = ", ".join(who) if len(who) <= len(rest) else f"all but {', '.join(rest)}" if rest else "every attack"
        texts.append(f"{by}, {adversary.value}, on {on}: {reason}")
    return texts


def _attack(kind: Callable[..., Attack]) -> Attack:
    return kind()


def _mlp(features: int, classes: int, generator: torch.Generator) -> torch.nn.Sequential:
    model = mlp(
        features=features, hidden=(HIDDEN,), classes=classes, activation=Activation.SIGMOID, generator=generator
    )
    initialize_default(model, generator=generator)
    return model


def _decoder(features: int, *, generator: torch.Generator) -> torch.nn.Sequential:
    return _mlp(features, CLASSES, generator)


@cache
def _generator() -> ImageGenerator:
    """A decoder of two latent entries that was never trained."""
    decoder = _mlp(2, FEATURES, torch.Generator().manual_seed(0))
    return ImageGenerator(
        module=torch.nn.Sequential(decoder, torch.nn.Sigmoid()),
        latent_shape=(2,),
        domain=_row_of_table(torch.Generator())[1],
        source="never trained",
    )


def _perturbation(*, tokens: bool = False) -> AdversarialPerturbation:
    size = small_setting(tokens=tokens).objective.size
    zeros, generator = torch.zeros(size), torch.Generator().manual_seed(0)
    classifier = SensitiveClassifier(zeros, zeros + 1, hidden=4, classes=2, generator=generator)
    return AdversarialPerturbation(classifier=classifier.requires_grad_(False))


_NUMBERS: Mapping[type, float | int] = {float: 0.5, int: 4}
_EXAMPLES: Mapping[str, Callable[[], Defense]] = {
    "AdversarialPerturbation": _perturbation,
    "DPSGD": lambda: DPSGD(clip_norm=0.5, noise_std=0.1, noise=NoiseOn.SUM),
    "LayerNoise": lambda: LayerNoise(std={"0": 0.1, "2": 0.2}),
    "Soteria": lambda: Soteria(layer="2"),
    "VariationalBottleneck": lambda: VariationalBottleneck(width=4),
}
# Examples that name or count what a model holds, for the encoder of tokens.
_ON_TOKENS: Mapping[str, Callable[[], Defense]] = {
    "AdversarialPerturbation": partial(_perturbation, tokens=True),
    "LayerNoise": lambda: LayerNoise(std={"word": 0.1, "blocks.0.query": 0.2}),
    "Soteria": lambda: Soteria(layer="head"),
}
# Attacks on numbers whose unknowns have to be named where the examples are sentences.
_ON_SENTENCES: Mapping[str, Callable[[], Attack]] = {"Inversion": lambda: Inversion(variables=Embeddings())}
# Settings of a defense that attacks meet in another way than its default.
_SECOND: Mapping[str, Callable[[], Defense]] = {
    "Quantize(stochastic=False)": lambda: Quantize(bits=4, stochastic=False),
}

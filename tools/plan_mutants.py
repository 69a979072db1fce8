"""Damaged plans: those of examples and docs, changed at the level of bytes, of words, of values and of tables."""

from __future__ import annotations

import copy
import inspect
import math
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time
from functools import cache
from pathlib import Path
from typing import Any

from gradleak.auditing.catalog import catalog
from tools.toml_text import toml_text

ROOT = Path(__file__).parent.parent
Content = dict[str, Any]
Mutation = Callable[[random.Random, Content], None]

# What fragments of a plan in the docs leave out.
_REST = """
[model]
use = "mlp"
features = 65
hidden = [8]
classes = 2

[data]
use = "adult_census"
count = 4

[[scenarios]]
name = "undefended"
"""
_WORD = re.compile(r'"(?:\\.|[^"\\\n])*"|[\w.+-]+|\s+|.', re.DOTALL)


@cache
def plans() -> Sequence[Content]:
    """Plans of the examples and of the docs, parsed, fragments filled up."""
    found = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "examples").glob("*.toml"))]
    for page in sorted((ROOT / "docs").rglob("*.md")):
        found += re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    contents = (tomllib.loads(text) for text in found)
    return [tomllib.loads(_REST) | content for content in contents if "training" not in content]


def mutant(draw: random.Random, seeds: Sequence[Content]) -> bytes:
    """A damaged plan.

    Args:
        draw: source of all that is drawn.
        seeds: plans to damage.
    """
    level = draw.random()
    content = draw.choice(seeds)
    text = toml_text(damage(draw, content) if level < 0.6 else content)
    if level > 0.8:
        return _bytes(draw, text.encode())
    if level > 0.62:
        text = _words(draw, text, toml_text(draw.choice(seeds)))
    elif level > 0.6:
        text = _huge(draw, text)
    return text.encode("utf-8", errors="surrogatepass")


def damage(draw: random.Random, content: Content) -> Content:
    """A plan with a few values or tables changed.

    Args:
        draw: source of all that is drawn.
        content: the plan, which stays as it is.
    """
    changed = copy.deepcopy(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        draw.choice((*VALUES, *VALUES, *TABLES))(draw, changed)
    return changed


def _bytes(draw: random.Random, text: bytes) -> bytes:
    """Bytes flipped, put in, taken out, doubled, or cut off."""
    found = bytearray(text)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        place = draw.randrange(len(found) + 1)
        far = min(len(found), place + draw.choice((1, 2, 8, 40)))
        kind = draw.randrange(6)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            found[place:place] = draw.choice(
                (b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\x1b[2J", b"=", b"[", b"9" * 30)
            )
        elif kind == 2:
            del found[place:far]
        elif kind == 3:
            found[place:place] = found[place:far]
        elif kind == 4:
            found[place:far] = bytes(draw.randrange(256) for _ in range(far - place))
        elif draw.random() < 0.2:
            del found[place:]
    return bytes(found)


def _words(draw: random.Random, text: str, other: str) -> str:
    """Words swapped, doubled, dropped, or taken from another plan."""
    words, others = _WORD.findall(text), _WORD.findall(other)
    for _ in range(draw.choice((1, 1, 2, 4))):
        one, two = draw.randrange(len(words)), draw.randrange(len(words))
        kind = draw.randrange(5)
        if kind == 0:
            words[one], words[two] = words[two], words[one]
        elif kind == 1:
            words[one] = draw.choice(others)
        elif kind == 2:
            words[one] = ""
        elif kind == 3:
            words[one] *= 2
        else:
            words[one] = draw.choice(
                ("true", "1e400", "0x10", "1_000", "nan", "'''", '""', "[[", "{}", "1979-05-27", "-0", ".")
            )
    return "".join(words)


def _huge(draw: random.Random, text: str) -> str:
    """Deep, long or many."""
    size = draw.choice((500, 5_000, 50_000, 400_000))
    return draw.choice(
        (
            lambda: f"deep = {'[' * size}{']' * size}\n{text}",
            lambda: f"seed = {'9' * size}\n{text}",
            lambda: f"{'.'.join(f'k{place}' for place in range(size))} = 1\n{text}",
            lambda: "".join(f"key{place} = 1\n" for place in range(size)) + text,
            lambda: f"[{'.'.join('a' * size)}]\n{text}",
            lambda: f'name = "{"x" * size}"\n{text}',
            lambda: f"{text}\nmore = {'{ a = ' * size}1{' }' * size}\n",
            lambda: text + "".join(f'[[scenarios]]\nname = "s{place}"\n' for place in range(size // 1000)),
            lambda: "#" * size * 10 + text,
        )
    )()


def extreme(draw: random.Random) -> Any:
    """A value that hardly any key may hold."""
    return draw.choice(_EXTREMES)() if draw.random() < 0.9 else [extreme(draw) for _ in range(draw.randrange(4))]


def _deep(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


_NUMBERS: tuple[Any, ...] = (
    0, 1, 2, -1, 2**31, 2**31 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400, -(10**400),
    0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-300, 5e-324, 1e300, math.inf, -math.inf, math.nan,
)  # fmt: skip
_BIDI = "\N{RIGHT-TO-LEFT OVERRIDE}"
_TEXTS = (
    "", " ", "a", "all", "none", "nan", "1", "true", "\0", "a\0b", f"{_BIDI}evil", "a\N{LEFT-TO-RIGHT ISOLATE}b", "\x1b[31m",
    "\n", "a\N{COMBINING DIAERESIS}", "\N{GRINNING FACE}" * 60, "x" * 5000,
    "/", "../..", "/etc/passwd", "/dev/zero", ".", "a/b", "run", "control", "baseline", "os:getcwd", "os:abort", "os:system",
    "builtins:exit", "builtins:list", "builtins:print", "sys:exit", "subprocess:Popen", "tempfile:TemporaryFile", "torch:Tensor",
    "torch.nn:Linear", "torch.nn:Module", "torch.nn:ReLU", "torch:rand", "os:environ", "os:", ":os", ":", "a:b:c", "os.path:join",
    "gradleak:Clip", "gradleak:audit", "gradleak:GaussNewton", "gradleak.core:Defense", "gradleak.core:Batch", "no.such:thing",
    "DPSGD.from_", "DPSGD.from_noise_multiplier", "Clip.__init__", "Clip.apply", "mlp.__call__", "lenet_i2f", "MnistDigits",
)  # fmt: skip
_EXTREMES: tuple[Callable[[], Any], ...] = (
    *(lambda value=value: value for value in (*_NUMBERS, *_TEXTS, *_TEXTS[:20])),
    *(lambda value=value: value for value in (True, False, date(2024, 1, 2), time(1, 2), datetime(2024, 1, 2, 3, 4))),
    list, dict, lambda: [[]], lambda: [{}], lambda: {"use": {}}, lambda: {"use": []}, lambda: {"use": ["mlp"]},
    lambda: {"use": 3}, lambda: {"use": ""}, lambda: {"use": "os:getcwd"}, lambda: {"use": "os:abort"}, lambda: {"": 1},
    lambda: [1, "a"], lambda: ["a", "a"], lambda: [-1], lambda: [0, 0], lambda: [True], lambda: [math.nan], lambda: [2**70],
    lambda: _deep(40), lambda: _deep(300), lambda: {"a": {"b": {"c": [{}]}}}, lambda: [0] * 2000, lambda: ["x"] * 2000,
)  # fmt: skip


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every value, tables and lists among them, the whole plan left out."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inside:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _at(content: Any, path: Sequence[Any]) -> Any:
    for step in path:
        content = content[step]
    return content


def _place(draw: random.Random, content: Content, *, table: bool = False) -> tuple[Any, Any] | None:
    """The owner of a value and its key or place in it."""
    found = [one for one in _places(content) if not table or isinstance(_at(content, one), dict)]
    if not found:
        return None
    *path, key = draw.choice(found)
    return _at(content, path), key


def _replaced(draw: random.Random, content: Content) -> None:
    """A value by an extreme one."""
    found = _place(draw, content)
    if found is None:
        return
    owner, key = found
    alike = [one for one in _NUMBERS if type(one) is type(owner[key])] if draw.random() < 0.5 else []
    owner[key] = draw.choice(alike) if alike else extreme(draw)


def _nudged(draw: random.Random, content: Content) -> None:
    """A number by one near it, a text by one like it, a list by one that is longer."""
    found = _place(draw, content)
    if found is None:
        return
    owner, key = found
    value = owner[key]
    if isinstance(value, bool):
        owner[key] = not value
    elif isinstance(value, int | float):
        owner[key] = draw.choice((-value, value + 1, value - 1, value * 1000, value // 3, str(value), [value]))
    elif isinstance(value, str):
        place = draw.randrange(len(value) + 1)
        owner[key] = draw.choice(
            (value[:place] + value[place + 1 :], value.upper(), f"{value}\0", f"‮{value}", [value], f"{value}:x")
        )
    elif isinstance(value, list):
        owner[key] = draw.choice(
            (value * 2, value[:-1], [value], [*value, extreme(draw)], {str(i): one for i, one in enumerate(value)})
        )


def _other_entry(draw: random.Random, content: Content) -> None:
    """Something else of the catalog, with arguments of its own that may hold anything."""
    tables = [one for one in _places(content) if isinstance(_at(content, one), dict) and "use" in _at(content, one)]
    if not tables:
        return
    table = _at(content, draw.choice(tables))
    room = (
        next((room for room in catalog().values() if str(table["use"]) in room), None) if draw.random() < 0.8 else None
    )
    entry = draw.choice(list((room or draw.choice(list(catalog().values()))).values()))
    arguments = list(inspect.signature(entry.constructor).parameters)
    table.clear()
    table["use"] = entry.name
    for name in draw.sample(arguments, min(len(arguments), draw.randrange(4))):
        table[name] = extreme(draw) if draw.random() < 0.7 else draw.choice((1, 2, 0.5, True, "a", "all"))


def _new_key(draw: random.Random, content: Content) -> None:
    """A key that a table did not have, one of its constructor's arguments where it has one."""
    found = _place(draw, content, table=True)
    if found is None:
        return
    table = found[0][found[1]]
    named = (
        room[table["use"]] for room in catalog().values() if isinstance(table.get("use"), str) and table["use"] in room
    )
    entry = next(named, None)
    keys = list(inspect.signature(entry.constructor).parameters) if entry else ["use", "name", "examples", "seed"]
    if keys:
        table[draw.choice(keys)] = extreme(draw)


def _dropped(draw: random.Random, content: Content) -> None:
    """A key, with all below it."""
    found = _place(draw, content)
    if found is not None:
        del found[0][found[1]]


def _doubled(draw: random.Random, content: Content) -> None:
    """A table twice: in a list, or under another name."""
    found = _place(draw, content, table=True)
    if found is None:
        return
    owner, key = found
    if isinstance(owner, list):
        owner.append(copy.deepcopy(owner[key]))
    elif draw.random() < 0.5:
        owner[key] = [owner[key], copy.deepcopy(owner[key])]
    else:
        owner[f"{key}2"] = copy.deepcopy(owner[key])


def _swapped(draw: random.Random, content: Content) -> None:
    """Two values in each other's places."""
    one, two = _place(draw, content), _place(draw, content)
    if one is not None and two is not None:
        (owner, key), (other, place) = one, two
        first, second = copy.deepcopy(owner[key]), copy.deepcopy(other[place])
        owner[key], other[place] = second, first


def _renamed(draw: random.Random, content: Content) -> None:
    """A key under a name that is like it, or one of another table."""
    found = _place(draw, content)
    if found is None or isinstance(found[0], list):
        return
    owner, key = found
    names = [str(path[-1]) for path in _places(content)]
    name = draw.choice((f"{key}s", key[:-1], key.upper(), draw.choice(names), draw.choice(_TEXTS)))
    owner[name] = owner.pop(key)


VALUES: tuple[Mutation, ...] = (_replaced, _replaced, _nudged, _other_entry, _new_key)
TABLES: tuple[Mutation, ...] = (_dropped, _doubled, _swapped, _renamed)

_SMALL = """
name = "small"
seed = 3
checkpoint_seconds = 1.5
save_updates = true

[model]
use = "mlp"
features = 65
hidden = [6]
classes = 2
activation = "tanh"
initialize = { use = "uniform", low = -0.5, high = 0.5 }

[objective]
loss = "cross_entropy"
mode = "eval"
dtype = "float64"

[threat]
use = "HonestButCurious"
targets = true
"""
_ROWS = """
[data]
use = "adult_census"
count = 4
batch_size = 1
"""
_ATTACKS = """
[controls]
attack = "gauss_newton"
negative = false

[thresholds]
pixel_rmse = 0.1

[attacks.gauss_newton]
use = "GaussNewton"
max_steps = 2
starts = 1

[attacks.inverting]
use = "InvertingGradients"
iterations = 3
restarts = 2
total_variation = 0.001

[attacks.dlg]
use = "DLG"
iterations = 1

[[scenarios]]
name = "undefended"
examples = [0, 1]
attacks = { gauss_newton = "all", dlg = [0] }

[[scenarios]]
name = "defended"
protocol = { use = "FedAvg", learning_rate = 0.1, epochs = 2 }
defenses = [{ use = "Clip", max_norm = 1.0 }, { use = "GaussianNoise", std = 1e-3 }]
examples = [1]
attacks = { inverting = [1] }
adversaries = ["static"]
perfect_attacker = { below = 0.05, max_steps = 2 }
"""
_MEASURES = """
[measures.influence]
use = "InversionInfluence"
epsilon = 0.01
unit = "pixel_rmse"

[measures.bound]
use = "BayesianCramerRao"
prior_std = 0.3
samples = 16

[measures.chance]
use = "ReconstructionProbability"
within = 0.1
candidates = 10

[[scenarios]]
name = "noise"
examples = [0]
defenses = [{ use = "GaussianNoise", std = 0.01 }]

[[scenarios]]
name = "private"
examples = [2]
defenses = [{ use = "DPSGD.from_noise_multiplier", clip_norm = 1.0, noise_multiplier = 1.1, expected_batch_size = 8 }]
"""
_UTILITY = """
[utility]
data = { use = "adult_census", count = 40 }
test_rows = 10
rounds = 2
batch_size = 4
learning_rate = 0.1
seeds = 1
delta = 1e-5

[[scenarios]]
name = "pruned"
examples = [0]
defenses = [{ use = "Prune", ratio = 0.5 }]
"""
_LAYERS = """
[layers.gender]
data = { use = "adult_table" }
target = "loan"
attribute = "gender"
count = 40
releases = 2
by = "layer"
visible = ["last layer"]
budget = 0.5
measures = [{ use = "Sensitivity" }, { use = "SubspaceDistance", dimension = 2 }]

[[scenarios]]
name = "layer noise"
examples = [0]
defenses = [{ use = "LayerNoise", std = { "0" = 0.1 } }]
"""
_PRIVACY = """
[privacy.gender]
use = "AttributeAudit"
table = { use = "adult_table" }
target = "loan"
attribute = "gender"
private_rows = 40
trials = 40
epochs = [0]
canary = { iterations = 2, starts = 1 }
estimators = [{ use = "CorrectedThresholdEpsilon" }, { use = "GaussianFitEpsilon" }]

[[scenarios]]
name = "private"
defenses = [{ use = "DPSGD", clip_norm = 1.0, noise_std = 0.5, noise = "sum" }]
"""
_GAME = """
[inference.gender]
use = "PropertyGame"
population = { use = "adult_population", sensitive = "gender" }
batch_size = 4
rounds = 1
learning_rate = 0.01
private_rows = 60
public_rows = 60
trials = 40
shadow_batches = 20
features = { use = "MaxPooling", kernel = 3 }
adversary = { use = "RandomForest", trees = 3 }

[[scenarios]]
name = "signs"
defenses = [{ use = "Sign" }]
"""


def small_plans() -> Sequence[Content]:
    """Plans of every kind of audit that run within seconds."""
    of_batches = [f"{_SMALL}{_ROWS}{part}" for part in (_ATTACKS, _MEASURES, _UTILITY, _LAYERS, _PRIVACY)]
    of_rows = [f"{_SMALL}{part}".replace("features = 65", "features = 63") for part in (_GAME,)]
    return [tomllib.loads(text) for text in (*of_batches, *of_rows)]


def cut(content: Any, *, most: int = 100) -> Any:
    """The content with whole numbers of at most `most`: what a damaged plan asks for is done, as little as may be.

    Args:
        content: a plan, or a value in it.
        most: the largest whole number.
    """
    if isinstance(content, dict):
        return {key: cut(value, most=most) for key, value in content.items()}
    if isinstance(content, list):
        return [cut(value, most=most) for value in content[:most]]
    return content % most + 1 if isinstance(content, int) and content > most else content

"""Study: layers that tell an attacker of an attribute, and measures without an attacker that foresee it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

from gradleak.core import describe, one_thread
from gradleak.results import MO_2021, Citation, InputError, check_count, check_seed
from studies.layer_latent_cells import (
    ATTACKERS,
    DISTANCE,
    EFFECT,
    FOREST,
    INPUTS,
    LABELS,
    LOGISTIC,
    MINE_ATTRIBUTE,
    MINE_LABEL,
    NEAR_ATTRIBUTE,
    NEAR_LABEL,
    P_VALUE,
    SENSITIVITY,
    LatentCell,
    Recipe,
    measure,
)
from studies.layer_latent_data import (
    IMAGE_NETWORKS,
    Files,
    LatentData,
    LatentNetwork,
    Parts,
    networks_for,
    population,
)
from studies.layer_latent_findings import (
    FIRST_DENSE,
    ROLES,
    Cells,
    Correlation,
    Null,
    Place,
    Trend,
    correlation,
    largest_layer,
    null,
    trend,
)
from studies.spots import Spot, spots
from studies.store import Store, content_of
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import shown_with

_MEASURES = {
    DISTANCE: "subspace distance",
    EFFECT: "effect size of the subspace distance",
    SENSITIVITY: "sensitivity",
    MINE_ATTRIBUTE: "MINE, attribute",
    NEAR_ATTRIBUTE: "neighbors, attribute",
}
# The two that the paper calls measures of gradient changes; it gives one range for all.
_PAPER = {DISTANCE: "0.686 to 0.707", SENSITIVITY: "0.686 to 0.707"}
_FAMILIES = {FOREST: "forest", LOGISTIC: "logistic regression"}


@dataclass(frozen=True, kw_only=True)
class LayerLatent(Study):
    """V-information of an attribute in every layer, beside measures that know no attacker, and the same for shuffled attributes.

    A model is trained on some rows. Of further rows the gradients are taken, one a batch whose rows all have one value of
    the attribute, as many of each value, and no row in two batches. Every layer, and every two layers that follow one
    another, is then measured: V-information of a random forest on the entries (as in the paper) and of logistic
    regression on principal components of gradients scaled to length 1, both held out; distance of the
    gradient subspaces with a permutation null; sensitivity; mutual information with attribute and label by `MINE` and by
    neighbors. What labels alone and the inputs themselves tell the same attackers stands beside.

    Correlations of the measures with V-information over layers are pooled and within cells; their intervals draw whole
    models (data and network) anew.

    **Source**: Mo et al. 2021, figures 5 and 7 and section 6.3 (latent information). Deviations: other data, of which the
    strokes and tints of digits are planted; batches share no row; a forest reads at most `entries` numbers of a layer, the
    largest of every few neighboring ones where there are more; rows for training are apart from those that are judged,
    where the paper does not say. An accent is that of few speakers, who occur on both sides of the held-out split: it
    is their voices that are told apart.

    Attributes:
        data: which; those without their files are left out with a line that says so.
        networks: for images.
        batch_sizes: rows behind a gradient, each a cell.
        epochs: of training.
        training_rows: at most, and at most two in five of all rows.
        judged: gradients a cell, at most, half of them with the attribute.
        examples: of the sensitivity.
        products: random products of each.
        entries: that a forest reads of a layer, at most.
        components: that logistic regression reads.
        dimension: of the subspaces.
        columns: gradients of each group for them.
        permutations: of their null.
        steps: of MINE.
        shuffles: random orders of the attribute that the attackers are run on, a cell.
        orders: random orders for p-values of the subspace distance, a cell.
        speech: npz file of spoken digits, see `speech_digits`.
        text: labeled sentences, see `sentences`.
        public_text: text for the vocabulary.
        seed: of everything.
        cells: file that keeps a cell as soon as it ends.
    """

    name: ClassVar[str] = "layer_latent"
    source: ClassVar[str] = "figures 5 and 7, section 6.3"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)

    data: Sequence[LatentData] = tuple(LatentData)
    networks: Sequence[LatentNetwork] = IMAGE_NETWORKS
    batch_sizes: Sequence[int] = (1, 32)
    epochs: int = 40
    training_rows: int = 1000
    judged: int = 240
    examples: int = 20
    products: int = 16
    entries: int = 4096
    components: int = 50
    dimension: int = 8
    columns: int = 50
    permutations: int = 199
    steps: int = 200
    shuffles: int = 4
    orders: int = 20
    speech: str | None = None
    text: str | None = None
    public_text: str | None = None
    seed: int = 0
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, least in (
            ("training_rows", 1), ("judged", 20), ("examples", 2), ("products", 2), ("entries", 1), ("components", 1),
            ("dimension", 1), ("columns", 2), ("permutations", 19), ("steps", 1), ("shuffles", 0), ("orders", 0), ("epochs", 0),
        ):  # fmt: skip
            check_count(f"LayerLatent.{name}", getattr(self, name), least=least)
        for size in self.batch_sizes:
            check_count("LayerLatent.batch_sizes", size)
        check_seed("LayerLatent.seed", self.seed)
        if not self.data or not self.networks or not self.batch_sizes:
            raise InputError("LayerLatent: expected at least one of data, networks and batch_sizes each")
        strange = [name for name in self.networks if name not in IMAGE_NETWORKS]
        if strange:
            raise InputError(f"LayerLatent.networks: expected {', '.join(IMAGE_NETWORKS)}, got {strange[0]}")

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about a minute of one core a cell, and up to 2 GB for `alexnet_small`."""
        cells = dict[Place, LatentCell]()
        with Store(self.cells) as store, one_thread():
            for place, cell in self._cells(store, say):
                cells[place] = cell
                say(_progress(place, cell))
        known = {place: cell for place, cell in cells.items() if not cell.note}
        if not known:
            raise InputError("LayerLatent: expected at least one cell with enough rows, got none")
        settings = {name: value for name, value in describe(self).items() if name != "cells"}
        return self._result(settings, cells, known)

    def _cells(self, store: Store, say: Say) -> Iterator[tuple[Place, LatentCell]]:
        files = Files(speech=self.speech, text=self.text, public_text=self.public_text)
        recipe = Recipe(
            rows=self.judged, examples=self.examples, products=self.products, entries=self.entries,
            components=self.components, dimension=self.dimension, columns=self.columns, permutations=self.permutations,
            steps=self.steps, shuffles=self.shuffles, orders=self.orders, seed=self.seed,
        )  # fmt: skip
        for data in map(LatentData, self.data):
            missing = files.missing(data)
            if missing:
                say(f"{data.value}: left out, no file in {missing}")
                continue
            parts = Parts.of(population(data, files, seed=self.seed), training=self.training_rows, seed=self.seed)
            content = content_of([parts.population.rows(parts.judged), parts.population.rows(parts.training)])
            for network in networks_for(data, tuple(map(LatentNetwork, self.networks))):
                for size in self.batch_sizes:
                    key = {
                        "data": data.value, "network": network.value, "batch_size": size, "epochs": self.epochs,
                        "content": content, "recipe": asdict(recipe),
                    }  # fmt: skip
                    compute = partial(measure, recipe, parts, network, batch_size=size, epochs=self.epochs)
                    yield Place(data=data, network=network, batch_size=size), store.kept(key, LatentCell, compute)

    def _result(self, settings: dict[str, Any], cells: Cells, known: Cells) -> StudyResult:
        trends = {attacker: trend(known, attacker, seed=self.seed) for attacker in ATTACKERS}
        pairs = [(name, attacker) for name in _MEASURES for attacker in ATTACKERS]
        together = {(name, attacker): correlation(known, name, attacker, seed=self.seed) for name, attacker in pairs}
        chance = null(known, seed=self.seed)
        findings = [*_trend_findings(trends), *_correlation_findings(together), *_null_findings(chance)]
        return StudyResult(
            study=self.name,
            settings=settings,
            findings=findings,
            conclusion=[
                *(line for attacker in ATTACKERS for line in _where(known, attacker, trends[attacker])),
                *_references(known),
                *_foreseen(together),
                *_mutual(known),
                *_chance(known, chance),
                *(f"{place.title}: {cell.note}." for place, cell in cells.items() if cell.note),
            ],
            details={place.title: asdict(cell) for place, cell in cells.items()},
            tables=[_models(known), _layers(known), _correlations(together)],
            figures=_figures(known),
        )


def _progress(place: Place, cell: LatentCell) -> str:
    if cell.note:
        return f"{place.title}: {cell.note}"
    best = "; ".join(f"{_FAMILIES[name]}: {profile.leakiest}" for name, profile in cell.information.items())
    return f"{place.title}: {cell.rows} gradients, {cell.seconds:.0f} s; leakiest by {best}"


def _leakiest(cell: LatentCell, attacker: str, *, pairs: bool = False) -> str:
    profile = (cell.pairs if pairs else cell.information)[attacker]
    if not profile.found:
        return "nothing found"
    rivals = f" (not told from it: {', '.join(profile.rivals)})" if profile.rivals else ""
    return f"{profile.leakiest}{rivals}"


def _models(cells: Cells) -> Table:
    columns = (
        "model", "k", "gradients", "accuracy", "labels alone", "inputs themselves", "leakiest, forest",
        "leakiest, logistic", "leakiest two layers, forest", "seconds",
    )  # fmt: skip
    rows = [
        [
            place.model,
            str(place.batch_size),
            str(cell.rows),
            "-" if cell.accuracy is None else f"{cell.accuracy:.2f}",
            cell.alone[FOREST][LABELS].text(),
            cell.alone[FOREST][INPUTS].text(),
            _leakiest(cell, FOREST),
            _leakiest(cell, LOGISTIC),
            _leakiest(cell, FOREST, pairs=True),
            f"{cell.seconds:.0f}",
        ]
        for place, cell in cells.items()
    ]
    return Table(
        title="Models, and where each leaks most (V-information in nats, at most 0.69)", columns=columns, rows=rows
    )


def _figures(cells: Cells) -> dict[str, str]:
    """V-information of the forest and subspace distance over the place in the network, as in the paper's figures 5 and 7."""
    panels: dict[str, dict[str, list[Spot]]] = {}
    for place, cell in cells.items():
        readings = cell.information[FOREST].readings
        for title, values in (
            ("V-information of the attribute", {layer: found.value for layer, found in readings.items()}),
            ("subspace distance", {layer: found.value for layer, found in cell.measures[DISTANCE].items()}),
        ):
            largest = max((value for value in values.values() if value is not None), default=0.0)
            if largest > 0 and len(values) > 1:
                panels.setdefault(title, {})[place.title] = [
                    (number / (len(values) - 1), None if value is None else value / largest, None, None)
                    for number, value in enumerate(values.values())
                ]
    if not panels:
        return {}
    svg = spots(
        panels,
        x="place in the network, first to last",
        y="of the largest",
        title="An attribute, layer by layer",
        description="V-information of the attribute and subspace distance of each layer, each over its largest in the model. "
        "The paper's figures 5 and 7 have both largest at the first fully connected layer.",
        joined=True,
    )
    return {"layer_latent": svg}


def _layers(cells: Cells) -> Table:
    columns = (
        "model", "k", "layer", "entries", "V, forest", "V, logistic", "subspace distance", "effect size", "p",
        "sensitivity", "MINE, attribute", "neighbors, attribute", "MINE, label", "neighbors, label",
    )  # fmt: skip
    rows = [
        [
            place.model, str(place.batch_size), layer, f"{entries:,}",
            *(cell.information[attacker].readings[layer].text() for attacker in ATTACKERS),
            *(_text(cell, name, layer, form) for name, form in (
                (DISTANCE, ".2f"), (EFFECT, ".1f"), (P_VALUE, ".3g"), (SENSITIVITY, ".2g"), (MINE_ATTRIBUTE, ".2f"),
                (NEAR_ATTRIBUTE, ".2f"), (MINE_LABEL, ".2f"), (NEAR_LABEL, ".2f"),
            )),
        ]
        for place, cell in cells.items()
        for layer, entries in cell.entries.items()
    ]  # fmt: skip
    return Table(title="Layers", columns=columns, rows=rows)


def _text(cell: LatentCell, name: str, layer: str, form: str) -> str:
    # Batches have no label of their own.
    return cell.measures[name][layer].text(form) if name in cell.measures else "-"


def _correlations(together: dict[tuple[str, str], Correlation]) -> Table:
    columns = (
        "measure", "V-information of", "Pearson, pooled", "Spearman, pooled", "Pearson, cells scaled to their largest",
        "Pearson within cells, mean", "Spearman within cells, mean", "layers", "cells", "models",
    )  # fmt: skip
    names = ("pearson", "spearman", "scaled", "within", "within_ranks")
    rows = [
        [
            _MEASURES[name], _FAMILIES[attacker], *(_told(found, one) for one in names),
            str(found.points), str(found.cells), str(found.models),
        ]
        for (name, attacker), found in together.items()
    ]  # fmt: skip
    return Table(
        title="Measures and V-information over layers (the paper: R = 0.686 to 0.707)", columns=columns, rows=rows
    )


def _trend_findings(trends: dict[str, Trend | None]) -> list[Finding]:
    return [
        Finding(
            quantity=f"V-information of the {_FAMILIES[attacker]} over that of the leakiest layer: {where}",
            ours=found.mean[where],
            paper="largest of all" if where == FIRST_DENSE else "",
            interval=found.interval[where],
            n=found.models,
            note=f"mean over {found.cells} cells of networks with convolutions in which something is found",
        )
        for attacker, found in trends.items()
        if found is not None
        for where in ROLES
        if where in found.mean
    ]


def _correlation_findings(together: dict[tuple[str, str], Correlation]) -> list[Finding]:
    return [
        Finding(
            quantity=f"{kind} of the {_MEASURES[name]} with V-information of the {_FAMILIES[attacker]}, {how}",
            ours=getattr(found, field),
            paper=_PAPER.get(name, "") if field == "pearson" else "",
            interval=found.intervals[field],
            n=found.models,
            note=f"{found.points} layers of {found.cells} cells; n counts models",
        )
        for (name, attacker), found in together.items()
        for field, kind, how in (
            ("pearson", "Pearson", "pooled"),
            ("spearman", "Spearman", "pooled"),
            ("within", "Pearson", "mean within cells"),
        )
    ]


def _null_findings(chance: Null) -> list[Finding]:
    found = [
        Finding(
            quantity=f"shuffled attributes: share of p-values of the subspace distance of at most {level:g}",
            ours=share,
            interval=chance.intervals[level],
            n=chance.shuffles,
            note=f"{level:g} if uniform; {len(chance.p_values)} p-values, those of one shuffle go together",
        )
        for level, share in chance.at_most.items()
    ]
    return found + [
        Finding(
            quantity=f"shuffled attributes: share of layers whose V-information of the {_FAMILIES[attacker]} lies above 0",
            ours=chance.alarms[attacker] / chance.layers[attacker],
            n=chance.fitted,
            note=f"{chance.alarms[attacker]} of {chance.layers[attacker]} layers; at most 0.025 asked for",
        )
        for attacker in ATTACKERS
        if chance.layers[attacker]
    ]


def _where(cells: Cells, attacker: str, found: Trend | None) -> list[str]:
    """Place where it is largest; the paper: at the first fully connected layer."""
    mine = {place: cell for place, cell in cells.items() if place.network.first_dense is not None}
    telling = {place: cell for place, cell in mine.items() if cell.information[attacker].found}
    if not telling or found is None:
        return [f"{_FAMILIES[attacker]}: nothing found in any of {len(mine)} cells of networks with convolutions."]
    profiles = [(place.network.first_dense, cell.information[attacker]) for place, cell in telling.items()]
    first = sum(profile.leakiest == dense for dense, profile in profiles)
    open_ = sum(dense in profile.rivals for dense, profile in profiles)
    best = max(found.mean, key=lambda where: found.mean[where])
    agrees = "as in the paper" if best == FIRST_DENSE else f"the paper: {FIRST_DENSE}"
    shares = ", ".join(f"{where} {found.mean[where]:.2f}" for where in ROLES if where in found.mean)
    return [
        f"{_FAMILIES[attacker]}: something is found in {len(telling)} of {len(mine)} cells of networks with convolutions. The "
        f"first fully connected layer is the leakiest in {first}, not told from the leakiest in {open_}, and told to be "
        f"below it in {len(telling) - first - open_}. Over the largest of each cell, on average: {shares}; largest: "
        f"{best} ({agrees})."
    ]


def _references(cells: Cells) -> list[str]:
    above = [0, 0]
    for cell in cells.values():
        profile, alone = cell.information[FOREST], cell.alone[FOREST]
        best = profile.readings[profile.leakiest].value if profile.leakiest is not None else None
        for place, source in enumerate((LABELS, INPUTS)):
            other = alone[source].value
            above[place] += best is not None and other is not None and best > other
    return [
        f"The leakiest layer tells the forest more than the labels alone in {above[0]} of {len(cells)} cells, and more than "
        f"the inputs themselves in {above[1]} (values, not intervals)."
    ]


def _foreseen(together: dict[tuple[str, str], Correlation]) -> list[str]:
    lines = []
    for name in (DISTANCE, EFFECT, SENSITIVITY):
        found = together[name, FOREST]
        if found.pearson is None:
            continue
        interval = found.intervals["pearson"]
        if interval is None:
            verdict = "too few models for an interval"
        elif interval[0] > 0.707 or interval[1] < 0.686:
            verdict = "the interval leaves the paper's 0.686 to 0.707 out"
        elif interval[0] > 0.0:
            verdict = "above 0, and the interval holds the paper's 0.686 to 0.707"
        else:
            verdict = "the interval holds 0 as well as the paper's 0.686 to 0.707"
        lines.append(
            f"{_MEASURES[name]} and V-information of the forest: R = {_told(found, 'pearson')} pooled over "
            f"{found.points} layers of {found.models} models, Spearman {_told(found, 'spearman')}; within cells "
            f"R = {_told(found, 'within')}: {verdict}."
        )
    return lines


def _told(found: Correlation, name: str) -> str:
    return shown_with(getattr(found, name), found.intervals[name], ".2f")


def _mutual(cells: Cells) -> list[str]:
    """Number of cells in which the first layer has the largest mutual information, as in figure 3 of the paper."""
    said = []
    single = [cell for cell in cells.values() if MINE_LABEL in cell.measures]
    for name, words in ((MINE_LABEL, "MINE"), (NEAR_LABEL, "neighbors")):
        firsts = sum(largest_layer(cell, name) == next(iter(cell.entries)) for cell in single)
        said.append(f"{firsts} of {len(single)} cells by {words}")
    if not single:
        return []
    counts = ", ".join(said)
    return [
        f"Mutual information with the label is largest in the first layer in {counts} (figure 3 of the paper: always)."
    ]


def _chance(cells: Cells, chance: Null) -> list[str]:
    lines = []
    if chance.fitted:
        alarms = ", ".join(
            f"{chance.alarms[name]} of {chance.layers[name]} layers ({_FAMILIES[name]}, at most {chance.largest[name]:.2f} nats)"
            for name in ATTACKERS
        )
        lines.append(f"Shuffled attributes, {chance.fitted} orders: V-information above 0 in {alarms}.")
    if chance.shuffles:
        true = [
            found.value
            for cell in cells.values()
            for found in cell.measures[P_VALUE].values()
            if found.value is not None
        ]
        shares = ", ".join(
            f"{share:.3f}{_interval(chance.intervals[level])} at most {level:g}"
            for level, share in chance.at_most.items()
        )
        lines.append(
            f"Shuffled attributes, {chance.shuffles} orders: of {len(chance.p_values)} p-values of the subspace distance "
            f"{shares}. With the true attribute {sum(value <= 0.05 for value in true)} of {len(true)} are at most 0.05."
        )
    return lines


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"


__all__ = ["LatentData", "LatentNetwork", "LayerLatent"]

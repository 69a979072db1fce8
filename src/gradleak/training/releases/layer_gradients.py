"""Released gradients as one matrix a layer, for measures of where a release leaks."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.core import Batch, Objective, Release
from gradleak.defenses.draws import layers
from gradleak.results import InputError, check_count
from gradleak.training.releases.batch_releases import BatchReleases, Route

Groups = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerGradients:
    """The released updates of n batches, one matrix (n, P_l) a layer or named group.

    Attributes:
        matrices: by layer, in order; row i belongs to batch i, and its entries are those of the group's tensors one after
            another, each row-major.
        groups: names of the tensors of each.
        batches: places of the rows that each batch was made of, (n, k) int64.
        route: how the updates were computed, see `BatchReleases`.
        reason: why so.
    """

    matrices: Mapping[str, Tensor] = field(repr=False)
    groups: Groups
    batches: Tensor = field(repr=False)
    route: Route
    reason: str


def layer_gradients(
    objective: Objective,
    rows: Batch,
    *,
    release: Release,
    generator: torch.Generator,
    batches: Tensor | None = None,
    groups: Groups | None = None,
    max_bytes: int = 2**30,
) -> LayerGradients:
    """The released updates of batches of these rows as matrices (n, P_l), one a layer: what latent leakage is measured on.

    The numbers are those of `release` for one batch after another, defenses and their noise included: with
    `Clip(1.0)` every row of all matrices together has norm 1 at most, and `LayerNoise` after it hides some layers.

    **Assumptions**: none besides those of `BatchReleases`, which computes the updates.

    Args:
        objective: the client's loss, at the parameters that it shares its update for.
        rows: what batches are made of.
        release: protocol and defenses.
        generator: the only source of randomness, of noise for instance.
        batches: places of rows, (n, k) int64, for instance of `batches_of_one_value`; None for every row by itself
            (k = 1).
        groups: names of tensors by group; a tensor may be in several or in none. None for the layers: the tensors of one
            module together.
        max_bytes: memory budget of the matrices, at most half of it, and of what is held while they are made.

    Raises:
        InputError: for matrices above half of the budget, an empty group or an unknown tensor, and what `BatchReleases`
            refuses.
        UnsupportedError: for a defense of single examples on a model that mixes them.

    Cost:
        That of `BatchReleases`: its choice of a route, once, is worth 50 to 150 plain gradients with convolutions; then an
        example costs about a third of one (`lenet5`) to one and a half (nine layers), copies left out. For a few hundred examples
        of a large network without defenses a bare loop of autograd is faster, up to five times
        (`benchmarks/layer_gradients.py`). Memory `max_bytes`.

    Source:
        Mo et al. 2021, section 6 (gradients of each layer as the input of an attribute classifier, and as the vectors that
        span the subspaces of equation 13).
    """
    places = _places(rows, batches)
    slices = _slices(objective, groups)
    sizes = {group: sum(part.stop - part.start for part in parts) for group, parts in slices.items()}
    needed = len(places) * sum(sizes.values()) * objective.dtype.itemsize
    if needed > max_bytes // 2:
        raise InputError(
            f"layer_gradients: the matrices take {needed:,} bytes ({len(places)} rows of {sum(sizes.values()):,} numbers), more "
            f"than half of max_bytes = {max_bytes:,}; ask for fewer groups or batches, or go through layer_gradient_blocks"
        )
    releases = BatchReleases(objective, release, rows, max_bytes - needed)
    like = next(iter(objective.params.values()))
    matrices = {group: like.new_empty(len(places), size) for group, size in sizes.items()}
    start = 0
    for updates in releases.chunks(places, generator):
        for group, parts in slices.items():
            torch.cat([updates[:, part] for part in parts], dim=1, out=matrices[group][start : start + len(updates)])
        start += len(updates)
    return LayerGradients(
        matrices=matrices,
        groups=_groups(objective, groups),
        batches=places,
        route=releases.route,
        reason=releases.reason,
    )


def layer_gradient_blocks(
    objective: Objective,
    rows: Batch,
    *,
    release: Release,
    generator: torch.Generator,
    batches: Tensor | None = None,
    groups: Groups | None = None,
    max_bytes: int = 2**30,
) -> Iterator[dict[str, Tensor]]:
    """The matrices of `layer_gradients` in blocks of their rows, in order, where all of them together do not fit.

    Args:
        objective: as in `layer_gradients`.
        rows: likewise.
        release: likewise.
        generator: likewise; the same one gives the same numbers.
        batches: likewise.
        groups: likewise.
        max_bytes: memory budget of what is held; a block is a few megabytes.

    Returns:
        What yields by group (c, P_l), for the next c batches.

    Raises:
        InputError: as in `layer_gradients`, but for the budget.
        UnsupportedError: likewise.
    """
    places, slices = _places(rows, batches), _slices(objective, groups)
    chunks = BatchReleases(objective, release, rows, max_bytes).chunks(places, generator)
    return (
        {group: torch.cat([updates[:, part] for part in parts], dim=1) for group, parts in slices.items()}
        for updates in chunks
    )


def batches_of_one_value(
    sensitive: Tensor, *, count: int, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Batches whose rows all have the same value of a sensitive variable, `count` of each value, and that value.

    The rows of a batch are drawn without replacement; a row may be in several batches, so that batches are not
    independent: whoever splits them into training and test has to split rows first, and call this on each part.

    Args:
        sensitive: (r,) int64, of which each value that occurs has at least `size` rows.
        count: batches of each value.
        size: k, rows of a batch.
        generator: of the draws, on the CPU.

    Returns:
        Places of rows (n, k) int64 and values (n,), with n = values · count, the values in turn.

    Raises:
        InputError: for a value with too few rows, or a number out of range.

    Source:
        Mo et al. 2021, section 2.2 (batches with and without the attribute).

    Examples:
        >>> sensitive = torch.tensor([0, 1, 0, 1, 1])
        >>> batches, values = batches_of_one_value(sensitive, count=2, size=2, generator=torch.Generator().manual_seed(0))
        >>> values.tolist(), sensitive[batches].tolist()
        ([0, 1, 0, 1], [[0, 0], [1, 1], [0, 0], [1, 1]])
    """
    check_count("batches_of_one_value.count", count)
    check_count("batches_of_one_value.size", size)
    if sensitive.dim() != 1 or sensitive.dtype != torch.int64 or not len(sensitive):
        raise InputError(
            f"batches_of_one_value.sensitive: expected (r,) int64, got {tuple(sensitive.shape)} {sensitive.dtype}"
        )
    values = sensitive.unique()
    having = [(sensitive == value).nonzero()[:, 0] for value in values]
    for value, own in zip(values, having, strict=True):
        if len(own) < size:
            raise InputError(
                f"batches_of_one_value.size: expected at most {len(own)}, the rows with value {int(value)}, got {size}"
            )
    drawn = [own[torch.randperm(len(own), generator=generator)[:size]] for _ in range(count) for own in having]
    return torch.stack(drawn), values.repeat(count)


def _places(rows: Batch, batches: Tensor | None) -> Tensor:
    if batches is None:
        return torch.arange(rows.size)[:, None]
    if not isinstance(batches, Tensor) or batches.dim() != 2:
        form = tuple(batches.shape) if isinstance(batches, Tensor) else type(batches).__name__
        raise InputError(f"batches: expected places of rows, (n, k) int64, got {form}")
    return batches


def _groups(objective: Objective, groups: Groups | None) -> dict[str, tuple[str, ...]]:
    names = list(objective.params)
    if groups is None:
        return {layer or "(root)": tuple(members) for layer, members in layers(names).items()}
    if not groups:
        raise InputError("groups: expected at least one group of tensors, got none; None stands for the layers")
    for group, members in groups.items():
        if isinstance(members, str) or not members:
            raise InputError(f"groups: expected names of tensors in group {group!r}, got {members!r}")
        for name in members:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.0)[0]
                raise InputError(f"groups: group {group!r} names {name!r}, no shared tensor; is it {near!r}?")
    return {group: tuple(dict.fromkeys(members)) for group, members in groups.items()}


def _slices(objective: Objective, groups: Groups | None) -> dict[str, list[slice]]:
    """Places of the tensors of every group in a flat update."""
    places, start = {}, 0
    for name, tensor in objective.params.items():
        places[name] = slice(start, start + tensor.numel())
        start += tensor.numel()
    return {group: [places[name] for name in members] for group, members in _groups(objective, groups).items()}

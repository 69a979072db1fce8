"""Finding on the update of a client: a release, its blind guess, and whether it is what the stated setting makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gradleak.results.finding import Finding, NumberOrNone, Part


class Gate(Part):
    """Agreement of the update with what model, protocol and defenses make of the auditor's batch.

    Attributes:
        status: "consistent", "inconsistent", "not_applicable" or "cannot_tell"; "" where it was not asked.
        cosine: between the update and the recomputed mean.
        scale: ratio of their norms.
        chi_square_z: of the noise energy under known Gaussian noise.
        causes: likely causes of a mismatch.
    """

    status: str = ""
    cosine: NumberOrNone = None
    scale: NumberOrNone = None
    chi_square_z: NumberOrNone = None
    causes: tuple[str, ...] = ()


class TensorPrecision(Part):
    """Effect of a number format on the entries of one tensor, or of all; see `gradleak.core.Precision`."""

    dtype: str = ""
    entries: int = 0
    zero: float = 0.0
    subnormal: float = 0.0
    non_finite: float = 0.0


class UpdatePrecision(TensorPrecision):
    """The same for a whole update.

    Attributes:
        made_in: a shorter format in which the numbers were made, or None.
        tensors: the tensors that lost entries, by name.
    """

    made_in: str | None = None
    tensors: Mapping[str, TensorPrecision] = {}


class ReleaseFinding(Finding):
    """Release of one batch in one scenario. Its scores are the blind guess and what luck reaches.

    Attributes:
        knowledge: what the adversary knows, as `Knowledge.card` writes it.
        release: protocol and defenses, described.
        defenses: the defenses, each with its guarantee and stage.
        guarantee: of the release as a whole; None where it was not asked.
        noise_std: standard deviation of Gaussian noise that is the same on every shared number, or None.
        noise_rms: root mean square of the noise over all shared numbers, of whatever law; None where that is not known.
        gate: the consistency gate.
        given: whether the update was really sent, and not computed by the auditor.
        zero_tensors: names of tensors of the update that are zero throughout.
        precision: what number formats took from the update.
        alignment: what was done to make a given update fit the model.
        batch_size: how many examples are behind it.
        client_loss: of the batch, with two digits.
        dtype: in which the client computes.
        loss_name: of the model.
        picture: path of the original's picture beside the record, or None.
        update: path of the saved update beside the record, or None.
        domain_guessed: whether the range of the data was guessed from their values.
        domain_kind: "image", "tabular" or "signal".
        range_note: that the data use little of their declared range, or "".
        model_note: what in the numbers of the model keeps anything from coming through, or "".
    """

    kind: Literal["released"] = "released"
    knowledge: Mapping[str, Any] = {}
    release: Mapping[str, Any] = {}
    defenses: tuple[Mapping[str, Any], ...] = ()
    guarantee: str | None = None
    noise_std: NumberOrNone = None
    noise_rms: NumberOrNone = None
    gate: Gate = Gate()
    given: bool = False
    zero_tensors: tuple[str, ...] = ()
    precision: UpdatePrecision = UpdatePrecision()
    alignment: tuple[str, ...] = ()
    batch_size: int = 1
    client_loss: NumberOrNone = None
    dtype: str = ""
    loss_name: str = ""
    picture: str | None = None
    update: str | None = None
    domain_guessed: bool = False
    domain_kind: str = "image"
    range_note: str = ""
    model_note: str = ""

"""Single seeds of inference games, kept in files as they end, so that scores can be taken again without playing again."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradleak.core import describe
from gradleak.games import GameResult, InferenceGame, Knows, SeedResult
from gradleak.results import GradleakError, Outcome, Score
from gradleak.results.score import jsonable


class PlayStore:
    """Seeds of games in a folder, one npz file each: posteriors and truth of its trials, and what a result says of it.

    A seed that is kept is not played again, whatever other seeds it is asked for with; a file that cannot be read is as if
    never written. Bounds on information are not kept.

    Args:
        folder: is made when the first seed ends; None to keep nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        """Nothing is read yet."""
        self._folder = folder

    def play_seeds(self, game: InferenceGame, seeds: Sequence[int], *, jobs: int) -> GameResult:
        """Result of `game.play_seeds`, seed after seed; `seconds` is the sum of the seeds' own.

        Raises:
            InputError: as the game does.
            UnsupportedError: as the game does.
        """
        if self._folder is None:
            return game.play_seeds(seeds, jobs=jobs)
        played = [self._one(game, seed, jobs) for seed in seeds]
        return replace(
            played[0],
            runs=tuple(result.runs[0] for result in played),
            seconds=sum(result.seconds for result in played),
        )

    def _one(self, game: InferenceGame, seed: int, jobs: int) -> GameResult:
        assert self._folder is not None
        text = json.dumps([describe(game.describe()), seed], sort_keys=True)
        file = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"
        try:
            return _read(file, game)
        except (OSError, KeyError, TypeError, ValueError, IndexError, zipfile.BadZipFile, GradleakError):
            pass
        result = game.play(seed, jobs=jobs)
        self._folder.mkdir(parents=True, exist_ok=True)
        # A file appears whole or not at all.
        torn = file.with_suffix(".part")
        with torn.open("wb") as opened:
            np.savez_compressed(opened, **_arrays(result))  # type: ignore[arg-type]
        os.replace(torn, file)
        return result


def _arrays(result: GameResult) -> dict[str, NDArray[Any]]:
    (run,) = result.runs
    facts = {
        "values": list(result.values),
        "seconds": result.seconds,
        "jobs": result.jobs,
        "seed": run.seed,
        "outcome": run.outcome.label,
        "details": {str(kind): [jsonable(dict(of_round)) for of_round in run.details[kind]] for kind in run.details},
        "blind": run.blind,
        "drew_users": run.drew_users,
        "utility": None if run.utility is None else run.utility.to_dict(),
        "rows": dict(run.rows),
        "routes": list(run.routes),
        "notes": list(run.notes),
        "seconds_of": jsonable(dict(run.seconds)),
    }
    arrays: dict[str, NDArray[Any]] = {"facts": np.array(json.dumps(facts)), "truth": run.truth, "prior": run.prior}
    arrays |= {f"logs_{kind}": np.stack(list(logs)) for kind, logs in run.log_posteriors.items() if len(logs)}
    if run.law is not None:
        arrays["law"] = run.law
    if run.drawn is not None:
        arrays["drawn"] = run.drawn
    return arrays


def _read(file: Path, game: InferenceGame) -> GameResult:
    # Opened here, since numpy leaves a file that it cannot read open.
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as kept:
        facts = json.loads(str(kept["facts"]))
        run = SeedResult(
            seed=int(facts["seed"]),
            outcome=Outcome.from_label(facts["outcome"]),
            truth=kept["truth"],
            log_posteriors={
                kind: list(kept[f"logs_{kind}"]) if f"logs_{kind}" in kept else [] for kind in game.playing
            },
            details={Knows(kind): details for kind, details in facts["details"].items()},
            prior=kept["prior"],
            blind=float(facts["blind"]),
            utility=None if facts["utility"] is None else Score.from_dict(facts["utility"]),
            rows=facts["rows"],
            routes=facts["routes"],
            notes=facts["notes"],
            seconds=facts["seconds_of"],
            law=kept.get("law"),
            drawn=kept.get("drawn"),
            drew_users=bool(facts["drew_users"]),
        )
    return GameResult(
        kind=game.kind,
        game=game.describe(),
        population=game.population.name,
        values=tuple(facts["values"]),
        observed=game.seen,
        adversaries=game.playing,
        runs=(run,),
        jobs=int(facts["jobs"]),
        seconds=float(facts["seconds"]),
    )


__all__ = ["PlayStore"]

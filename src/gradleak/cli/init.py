"""`gradleak init`: a first plan and a script, or a copy of an example."""

from __future__ import annotations

import re
import sys
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.examples import example
from gradleak.cli.preview import preview
from gradleak.results import InputError
from gradleak.results.files import make_folder, write_file

# How a script of `new_plan` begins.
SCRIPT = '"""One audit of the first update'


class Preset(StrEnum):
    """Presets by name, here again so that help needs no torch."""

    QUICK = "quick"
    STANDARD = "standard"
    DEEP = "deep"


def init(
    model: Annotated[
        str | None, typer.Argument(help="The model: module:factory, or a name of `gradleak list`.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Argument(
            help="The data: a CSV, npz, safetensors or text file, a folder with one folder of images a class, or module:function."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Plan file to write; the script has its name and ends in .py. Default: audit.toml."),
    ] = None,
    preset: Annotated[Preset, typer.Option(help="How much is tried.")] = Preset.STANDARD,
    example_: Annotated[
        str | None, typer.Option("--example", help="Copy this example plan to examples/, in place of writing one.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column or array of the targets; default: the last column, or the array y.")
    ] = None,
    inputs: Annotated[str | None, typer.Option(help="Array of the inputs; default: x.")] = None,
    size: Annotated[
        str | None, typer.Option(help="Height and width that images are brought to, such as 32x32.")
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            help="The model's words for a file of sentences: vocab.txt, encoder.json; default: words are counted in public text."
        ),
    ] = None,
    merges: Annotated[str | None, typer.Option(help="vocab.bpe or merges.txt, beside encoder.json.")] = None,
    public_text: Annotated[
        str | None,
        typer.Option(
            "--public-text",
            help="Text whose words are counted, for a file of sentences; default: the first half of that file is public.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples of one update.")] = 1,
    loss: Annotated[
        str | None, typer.Option(help="Name of the loss, or module:function; default: by outputs and targets.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the model's weights.")] = None,
    train: Annotated[bool, typer.Option("--train", help="The client runs the model in train mode.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Argument of the model's factory, such as classes=10; repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
) -> None:
    """Look at a model and data, and write a commented plan that runs and a script; or copy an example."""
    if example_ is not None:
        target_file = out or Path("examples") / f"{example_}.toml"
        _write({target_file: example(example_)}, force=force)
        typer.echo(f"next: gradleak {_command(example_, target_file)}")
        return
    model = model or _asked("model (module:factory)", "MODEL")
    data = data or _asked("data (a file, a folder of images, or module:function)", "DATA")
    plan_file = out or Path("audit.toml")
    if plan_file.suffix != ".toml":
        raise InputError(f"--out: expected a file name that ends in .toml, got {plan_file}")
    script_file = plan_file.with_suffix(".py")
    _refuse_files(plan_file, script_file, force=force)
    # The folder of the command comes first, so that a plan can name the user's own modules.
    sys.path.insert(0, str(Path.cwd()))
    from gradleak.auditing.new_plan import Wishes, new_plan
    from gradleak.auditing.presets import Preset as Known

    if merges is not None and vocabulary is None:
        raise InputError("--merges: expected --vocabulary encoder.json beside it, got none")
    wishes = Wishes(
        preset=Known(preset.value),
        arguments=dict(map(_argument, set_ or ())),
        weights=weights,
        loss=loss,
        mode="train" if train else "eval",
        batch_size=batch_size,
        target=target,
        inputs=inputs,
        size=None if size is None else _size(size),
        vocabulary=vocabulary,
        merges=merges,
        public_text=public_text,
    )
    made = new_plan(model, data, wishes)
    _write({plan_file: made.text.replace("THIS_FILE", str(plan_file)), script_file: made.script}, force=force)
    for line in (*filter(None, [made.said]), *preview(made.plan)[0]):
        typer.echo(line)
    typer.echo(f"next: gradleak audit {plan_file} --out runs/1")


def _command(name: str, file: Path) -> str:
    """The command that carries an example out; that of a generator trains it."""
    if "[training]" in example(name):
        return f"train-generator {file} --out runs/{name.removesuffix('_generator')}.safetensors"
    return f"audit {file} --out runs/{name}"


def _asked(what: str, name: str) -> str:
    """The answer of who sits at the terminal.

    Raises:
        InputError: where nobody does.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(f"init: expected {name}, the {what}, or --example NAME, got none")
    return str(typer.prompt(what, err=True))


def _argument(text: str) -> tuple[str, Any]:
    """Name and value of an argument: a number, true, a list as TOML writes them, or a text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InputError(f"--set: expected NAME=VALUE, such as classes=10, got {text}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if not found:
        raise InputError(f"--size: expected HEIGHTxWIDTH, such as 32x32, got {text}")
    return int(found[1]), int(found[2])


def _refuse_files(*files: Path, force: bool) -> None:
    there = [str(file) for file in files if file.exists()]
    if there and not force:
        raise InputError(
            f"init: expected no such file yet, got {', '.join(there)}; name another by --out, or add --force"
        )
    for file in files:
        # The script has the name of the plan, which may be that of a module of the user.
        if file.suffix == ".py" and file.exists() and not file.read_bytes().startswith(SCRIPT.encode()):
            raise InputError(f"init: expected a script that init wrote, got another {file}; name another plan by --out")


def _write(files: dict[Path, str], *, force: bool) -> None:
    _refuse_files(*files, force=force)
    for file, text in files.items():
        make_folder(file.parent)
        typer.echo(f"wrote {write_file(file, text)}")

"""Declares options: those of several commands, and one for each field of a settings class."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from embedkit.config import Section, names_in
from embedkit.recipe import DtypeSettings

CommandT = TypeVar("CommandT", bound=Callable[..., None])


def is_main() -> bool:
    """Return whether this process prints results: rank 0 of torchrun, or a process without it."""
    return os.environ.get("RANK", "0") == "0"


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with embedkit, for the shell to complete."""
    return names_in("recipes")


def manifest_names() -> list[str]:
    """Return the names of the manifests that come with embedkit, for the shell to complete."""
    return names_in("data_manifests")


RECIPE_HELP = "A recipe: a name under recipes/ without .toml, or the path of a TOML file."
MODEL_HELP = "A model: a folder, a hub id, package:<distribution>/<path>, or starter."

RecipeName = Annotated[str, typer.Option(autocompletion=recipe_names, help=RECIPE_HELP)]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one key of the recipe, e.g. optim.lr=3e-5; KEY= unsets it. May be repeated.",
    ),
]
Model = Annotated[str, typer.Option(help=MODEL_HELP)]


def flag(name: str) -> str:
    """Return the option of an argument: ``margin_kind`` is ``--margin-kind``."""
    return f"--{name.replace('_', '-')}"


def with_options(settings: type[Section]) -> Callable[[CommandT], CommandT]:
    """Give a command an option for each field of ``settings``, in place of its ``**options``.

    An option has the name, type, default and description of its field. What types do not say of
    its value is checked where the settings are made.
    """

    def decorate(command: CommandT) -> CommandT:
        given = inspect.signature(command).parameters.values()
        plain = [parameter for parameter in given if parameter.kind is not parameter.VAR_KEYWORD]
        # A section lists inherited fields first, of which the precision matters least.
        fields = sorted(
            settings.model_fields.items(), key=lambda item: item[0] in DtypeSettings.model_fields
        )
        parameters = [
            *(parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in plain),
            *(_option(name, field) for name, field in fields),
        ]
        # Typer reads the options from the signature.
        vars(command)["__signature__"] = inspect.Signature(parameters)
        return command

    return decorate


def given(context: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user gave, without those that have their defaults unasked."""
    sources = {name: context.get_parameter_source(name) for name in options}
    asked = [name for name, source in sources.items() if source and source.name != "DEFAULT"]
    return {name: options[name] for name in asked}


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    option = flag(name)
    if field.default is True:
        option = f"{option}/{flag(f'no_{name}')}"
    metavar = "|".join(map(str, field.examples)) if field.examples else None
    assert field.description, f"{name} has no docstring"
    help_ = " ".join(field.description.replace("``", "").split())
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else field.default,
        annotation=Annotated[
            _word_type(field.annotation), typer.Option(option, help=help_, metavar=metavar)
        ],
    )


def _word_type(annotation: Any) -> Any:
    """Return what typer makes of a word: the field's type, or text that the field reads itself."""
    if get_origin(annotation) is Annotated:
        return _word_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        inner = [type_ for type_ in get_args(annotation) if type_ is not NoneType]
        return _word_type(inner[0]) | None if len(inner) == 1 else str
    if annotation == tuple[str, ...]:
        return list[str]  # The option may be repeated.
    known = annotation in (bool, int, float, str, Path) or get_origin(annotation) is Literal
    return annotation if known else str

"""Settings, options of commands and types of Python's arguments agree."""

import inspect
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pytest
import typer
from embedkit_cli.app import app
from embedkit_cli.mine import mine
from embedkit_cli.options import flag, with_options
from pydantic import Field, PositiveInt
from typer.main import get_command
from typer.testing import CliRunner

import embedkit
from embedkit.clustering.settings import ClusteringOptions
from embedkit.config import Section
from embedkit.errors import ArgumentError
from embedkit.evaluation.settings import (
    ComparisonOptions,
    EvaluationOptions,
    FailuresOptions,
    PerplexityOptions,
)
from embedkit.mining.settings import MiningOptions

COMMANDS: dict[str, tuple[type[Section], type]] = {
    "mine": (embedkit.MiningSettings, MiningOptions),
    "cluster": (embedkit.ClusteringSettings, ClusteringOptions),
    "eval-mteb": (embedkit.EvaluationSettings, EvaluationOptions),
    "eval-perplexity": (embedkit.PerplexitySettings, PerplexityOptions),
    "compare": (embedkit.ComparisonSettings, ComparisonOptions),
    "failures": (embedkit.FailuresSettings, FailuresOptions),
}
WIDER = {
    "instructions": str | Path | None,
    "data_dir": str | Path | None,
    "lengths": "Sequence[int] | str",
    "group": "Sequence[str]",
    "task": "Sequence[str]",
}
"""Arguments that may also be given in a form that the settings turn into their own."""


def plain(annotation: Any) -> Any:
    """Return a type without the bounds of its values, as a set of the types of a union."""
    if get_origin(annotation) in (Annotated, Required, NotRequired):
        return plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return frozenset().union(*map(plain, get_args(annotation)))
    return frozenset([annotation])


@pytest.mark.parametrize("command", COMMANDS)
def test_the_types_of_python_s_arguments_are_those_of_the_settings(command: str) -> None:
    settings, options = COMMANDS[command]
    hints = get_type_hints(options, include_extras=True)
    assert hints.keys() == settings.model_fields.keys()
    for name, field in settings.model_fields.items():
        if name not in WIDER:
            assert plain(hints[name]) == plain(field.annotation), name
        assert field.is_required() == (get_origin(hints[name]) is Required), name


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_an_option_for_every_field_with_its_default(command: str) -> None:
    settings, _ = COMMANDS[command]
    parameters = {each.name: each for each in get_command(app).commands[command].params}  # type: ignore[attr-defined]
    for name, field in settings.model_fields.items():
        option = parameters[name]
        assert option.opts == [flag(name)]
        assert option.required == field.is_required()
        assert field.is_required() or option.default == field.default
        assert option.help == " ".join((field.description or "").replace("``", "").split())


class Small(Section):
    """A section with a field of each kind that an option can have."""

    count: PositiveInt = 2
    """This many things are counted."""
    kind: Literal["one", "other"] = "one"
    """Things are of this kind."""
    ratio: float | None = None
    """Things are scaled by this number."""
    quiet: bool = False
    """Nothing is said."""
    cache: bool = True
    """Things are kept."""
    folder: Path | None = Field(default=None, strict=False)
    """Things lie in this folder."""


def received(*words: str) -> tuple[str, dict[str, Any]]:
    """Return what a command of the settings ``Small`` is called with."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def command(name: Annotated[str, typer.Option("--name")], **options: Any) -> None:
        calls.append((name, options))

    small = typer.Typer()
    small.command()(with_options(Small)(command))
    result = CliRunner().invoke(small, ["--name", "n", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return calls[0]


def test_words_become_typed_values() -> None:
    assert received() == ("n", Small().model_dump())
    words = ["--count", "3", "--kind", "other", "--ratio", "0.5", "--quiet", "--no-cache"]
    given = {"count": 3, "kind": "other", "ratio": 0.5, "quiet": True, "cache": False}
    assert received(*words, "--folder", "here") == ("n", {**given, "folder": Path("here")})


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: embedkit.mine("a", "b", "c", margin_kind="half"),  # type: ignore[arg-type]
            "margin_kind: Input should be 'relative', 'absolute' or 'none' (got 'half')",
        ),
        (
            lambda: embedkit.mine("a", "b", "c", negativs=2),  # type: ignore[call-arg]
            "negativs: there is no such argument, did you mean negatives?",
        ),
        (
            lambda: embedkit.cluster("starter", "c", dims=0, seed=-1),
            "dims: Input should be greater than 0 (got 0); "
            "seed: Input should be greater than or equal to 0 (got -1)",
        ),
        (
            lambda: embedkit.evaluate("starter", ["STS12"], cache_size="plenty"),
            "cache_size: write a number and a unit, such as 20GB (got 'plenty')",
        ),
        (
            lambda: embedkit.evaluate_perplexity(["a"], "b", "c", lengths=[2]),
            "lengths: give numbers of tokens from 3 on, e.g. 512,1024 (got 2)",
        ),
        (
            lambda: embedkit.load("starter", dtype="int8"),  # type: ignore[arg-type]
            "dtype: choose one of auto, bf16, fp16, fp32 (got 'int8')",
        ),
        (
            lambda: embedkit.export("starter", "c", to="gguf"),  # type: ignore[arg-type]
            "to: choose one of eurobert, neobert, onnx, sentence-transformers (got 'gguf')",
        ),
    ],
)
def test_python_names_the_argument_and_the_command_the_option(call: Any, line: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        call()
    assert str(refused.value) == line
    options = refused.value.written(flag)
    names = [each.partition(":")[0] for each in line.split("; ")]
    assert [each.partition(":")[0] for each in options.split("; ")] == [flag(n) for n in names]


def test_the_function_of_a_command_keeps_its_own_parameters_in_front() -> None:
    names = list(inspect.signature(mine).parameters)
    assert names[:4] == ["source", "model", "output", "overwrite"]
    assert "options" not in names

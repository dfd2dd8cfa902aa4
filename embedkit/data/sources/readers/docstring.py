"""Python modules: the first paragraph of a docstring with the function that it describes.

Modules are parsed and never imported.
"""

import ast
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.errors import DataError

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    summary: str
    code: str


def read(
    modules: Iterable[tuple[str, Path]], *, siblings: int, min_words: int, max_words: int
) -> Iterator[dict[str, Any]]:
    """Yield summary -> code without its docstring, for modules given as name and file.

    A function's neighbours in its module are its hard negatives.
    """
    for module, path in modules:
        functions = list(_functions(module, path, max_words))
        for place, function in enumerate(functions):
            if len(function.summary.split()) < min_words:
                continue
            others = _neighbours(functions, place, siblings)
            yield {
                "query": function.summary,
                "positive": function.code,
                "negatives": others,
                "negative_concepts": [module] * len(others),
                "id": f"{module}.{function.name}",
                "module": module,
            }


def _neighbours(functions: list[_Found], place: int, limit: int) -> list[str]:
    nearest = sorted(range(len(functions)), key=lambda other: (abs(other - place), other))
    own = functions[place].code
    codes = dict.fromkeys(functions[other].code for other in nearest)
    return [code for code in codes if code != own][:limit]


def _functions(module: str, path: Path, max_words: int) -> Iterator[_Found]:
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            # Of invalid escapes in other people's code.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path}: module {module} cannot be parsed ({error})") from None
    # Not splitlines: it also breaks at form feeds, where Python counts no line.
    lines = source.split("\n")
    for name, function in _walk(tree, ""):
        docstring = ast.get_docstring(function)
        code = _code(function, lines, max_words)
        if docstring and code:
            yield _Found(name, _first_paragraph(docstring), code)


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Functions of a module and methods of its classes, with their qualified names, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _walk(child, prefix)


def _first_paragraph(docstring: str) -> str:
    return " ".join(docstring.split("\n\n", 1)[0].split())


def _code(function: Function, lines: list[str], max_words: int) -> str:
    """Signature and body in the source's own words; empty where the docstring is all there is."""
    if len(function.body) == 1:
        return ""
    docstring, body = function.body[0], function.body[1]
    if docstring.lineno == function.lineno or body.lineno <= (docstring.end_lineno or 0):
        return ""
    signature = lines[function.lineno - 1 : docstring.lineno - 1]
    rest = lines[docstring.end_lineno or 0 : function.end_lineno]
    kept: list[str] = []
    words = 0
    for line in textwrap.dedent("\n".join(signature + rest)).split("\n"):
        words += len(line.split())
        if words > max_words:
            break
        if line.strip():
            kept.append(line.rstrip())
    return "\n".join(kept)

"""Reads Python modules: first paragraphs of docstrings, and the functions they describe.

Modules are parsed and never imported.
"""

import ast
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from embedkit.data.manifests.readers import Reader
from embedkit.data.sources.readers.siblings import negatives_of, row_of
from embedkit.errors import DataError

Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Documented(NamedTuple):
    name: str
    summary: str
    code: str


class DocstringReader(Reader):
    """First paragraphs of docstrings and their functions; columns as of OBO, and module."""

    kind: Literal["docstring"]
    siblings: NonNegativeInt = 2
    """The most neighbours in the module that a row gets as hard negatives."""
    min_words: PositiveInt = 4
    """Shortest first paragraph; shorter ones say too little to find a function by."""
    max_words: PositiveInt = 150
    """Words of code after which no further line is kept."""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield summary -> code without its docstring, for the functions of one module."""
        return self.read_modules([(path.stem, path)])

    def read_modules(self, modules: Iterable[tuple[str, Path]]) -> Iterator[dict[str, Any]]:
        """Yield the rows of modules, given as name and file."""
        for module, path in modules:
            functions = list(_functions(module, path, self.max_words))
            for index, function in enumerate(functions):
                if len(function.summary.split()) < self.min_words:
                    continue
                nearest = sorted(range(len(functions)), key=lambda n: (abs(n - index), n))
                near = ((functions[n].code, module) for n in nearest)
                negatives = negatives_of(function.code, near, self.siblings)
                id_ = f"{module}.{function.name}"
                row = row_of(function.summary, function.code, id_, negatives)
                yield {**row, "module": module}


def _functions(module: str, path: Path, max_words: int) -> Iterator[_Documented]:
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            # Other people's code may have invalid escapes.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path}: module {module} cannot be parsed ({error})") from None
    # Not splitlines: it also breaks at form feeds, where Python counts no line.
    lines = source.split("\n")
    for name, function in _walk(tree, ""):
        code = _code(function, lines, max_words)
        if code and (docstring := ast.get_docstring(function)):
            first_paragraph = docstring.split("\n\n", 1)[0]
            yield _Documented(name, " ".join(first_paragraph.split()), code)


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield functions and methods of classes with their qualified names, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _walk(child, prefix)


def _code(function: Function, lines: list[str], max_words: int) -> str:
    """Return signature and body as they are written; "" where the docstring is all there is."""
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

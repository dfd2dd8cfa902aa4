"""Says what embedkit makes of a file of pairs: its columns, counts, oddities and first rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from rich.table import Table
from transformers import PreTrainedTokenizerBase

from embedkit.config import validated
from embedkit.data.findings import EXAMPLES, Findings, counted
from embedkit.data.manifests.columns import Columns
from embedkit.data.manifests.manifest import Description, Prompts, SameLabel
from embedkit.data.pairs.from_rows import pairs
from embedkit.data.pairs.layout import ColumnLayout, one_line
from embedkit.data.pairs.lengths import Lengths, quantiles
from embedkit.data.pairs.recognition import Recognition, recognised
from embedkit.data.pairs.records import Record
from embedkit.data.sources.open_source import opened
from embedkit.data.sources.rows import Row, errors_named
from embedkit.data.sources.source_of import source_of
from embedkit.data.tables import plain_table
from embedkit.errors import DataError
from embedkit.tokens.tokenizer import Tokenize

_READ_FIRST = 1000
"""Rows by which the parts of columns are recognised."""
_SHOWN = 300
"""Characters of a text that are shown."""
_LIKE_LABELS = 0.05
"""Distinct positives per pair below which positives look like labels."""


@dataclass(frozen=True)
class Inspection:
    """Findings about a source of pairs, which ``print(embedkit.inspect("pairs.csv"))`` sums up."""

    name: str
    recognition: Recognition
    ignored: tuple[str, ...]
    findings: Findings
    first_rows: Sequence[Row]
    lengths: Lengths
    model: str
    longest: int
    """Tokens that the model reads of a text."""

    def __str__(self) -> str:
        recognition = self.recognition
        paths = recognition.columns.paths()
        return one_line(
            self.name,
            paths,
            recognition.unused,
            self.findings.pairs,
            same_label=recognition.same_label,
        )

    def remarks(self) -> Iterator[str]:
        """Yield what is odd about the source, or may not be meant, a sentence each."""
        found = self.findings
        recognition = self.recognition
        for name in recognition.telling:
            yield (
                f"Nothing uses the column {name!r}, which would change training: a manifest has to "
                "give it a part in columns, or to list it in ignore."
            )
        for name in self._numbers():
            yield f"The column {name!r} holds numbers like scores; columns.score would read them."
        for part, count in found.empty.items():
            yield f"{_rows(count)} no text for the {part}, and no pair: set drop_empty = true."
        if found.repeated:
            yield f"{_pairs(found.repeated)} an earlier one again: deduplicate = true drops those."
        if found.same_text:
            yield f"{_pairs(found.same_text)} of one text twice: there is nothing to learn in them."
        if found.several_answers:
            yield (
                f"{found.several_answers:,} of {len(found.answers):,} queries have several "
                "positives, which are never negatives of each other in a batch."
            )
        if found.wrong_negatives:
            yield f"{found.wrong_negatives:,} negatives are their own row's positive."
        few = len(found.positives) <= _LIKE_LABELS * found.pairs
        if found.pairs >= 2 * EXAMPLES and few and not recognition.same_label:
            yield (
                f"The positives are {len(found.positives):,} distinct texts in {found.pairs:,} "
                "pairs, and look like labels: name them in columns.label and make pairs by "
                "same_label = { seed = 0 }."
            )
        cut = self.lengths.truncated(self.longest, self.longest) if self.lengths.rows else 0
        if cut:
            yield f"{cut:.1%} of the texts are longer than {self.longest} tokens, and will be cut."

    def tables(self) -> Iterator[Table]:
        """Yield tables of the columns, of counts and remarks, of lengths and of the first pairs."""
        recognition, found = self.recognition, self.findings
        parts = {
            ", ".join(paths): (part, recognition.reasons.get(part, ""))
            for part, paths in recognition.columns.paths().items()
            if not (recognition.same_label and part == "positive")
        }
        columns = [(paths, *why) for paths, why in parts.items()]
        if recognition.same_label:
            columns.append(("", "positive", recognition.reasons["positive"]))
        columns += [(name, "unused", "its name stands for no part") for name in recognition.unused]
        columns += [(name, "ignored", "ignore lists it") for name in self.ignored]
        yield plain_table(["column", "part", "why"], columns, title=self.name, lines=False)
        facts = [("rows", f"{found.rows:,}"), ("pairs", f"{found.pairs:,}")]
        facts += [("distinct queries", f"{len(found.answers):,}")]
        facts += [("distinct positives", f"{len(found.positives):,}")]
        if found.negatives:
            each = found.negatives / found.with_negatives
            facts += [("pairs with negatives", f"{found.with_negatives:,}, {each:.1f} each")]
        facts += [("scripts", ", ".join(f"{s} {share:.0%}" for s, share in found.scripts()))]
        facts += [("to mind", remark) for remark in self.remarks()]
        yield plain_table([], facts, lines=False)
        measured = [
            (part, *(str(tokens) for share, tokens in quantiles(counts).items() if share >= 0.5))
            for part, counts in self.lengths.counts.items()
        ]
        if measured:
            heads = ["tokens", "50%", "75%", "95%", "99%", "longest"]
            title = f"token lengths by {self.model}, {self.lengths.rows:,} pairs"
            yield plain_table(heads, measured, title=title, lines=False)
        shown = [
            (str(n), *map(_short, (pair.query, pair.positive, "\n".join(pair.negatives[:3]))))
            for n, pair in enumerate(found.examples, start=1)
        ]
        if shown:
            yield plain_table(["pair", "query", "positive", "negatives (3 at most)"], shown)

    def _numbers(self) -> Iterator[str]:
        """Yield unused columns that hold numbers with fractions, which identifiers have not."""
        for name in self.recognition.unused:
            values = [row.get(name) for row in self.first_rows]
            if name not in self.recognition.telling and any(map(_is_fraction, values)):
                yield name


def inspect(
    data: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    model: str,
    *,
    columns: Columns | Mapping[str, str | Sequence[str]] | None = None,
    ignore: Sequence[str] = (),
) -> Inspection:
    """Read a source of pairs whole, and say what it is. Nothing is written.

    Args:
        data: a file, a folder of files or of ``datasets``, or the id ``org/name`` of the hub.
        tokenizer: counts the tokens of a sample of the pairs.
        model: what the tables call the tokenizer.
        columns: paths to the parts of a pair that are not to be recognised by their names.
        ignore: names of columns that play no part.

    Raises:
        DataError: the source cannot be read, or its columns are ambiguous.
    """
    name = str(data)
    given = validated(Description, {"columns": columns or {}, "ignore": list(ignore)}, name)
    (place, rows), *others = opened(source_of(name)).streams
    numbered = iter(rows)
    first = list(islice(numbered, _READ_FIRST))
    if not first:
        raise DataError(f"{name}: has no rows")
    streams = [(place, chain(first, numbered)), *others]
    first_rows = [row for _, row in first]
    names = dict.fromkeys(column for row in first_rows for column in row)
    with errors_named(name):
        recognition = recognised(names, first_rows, given.columns, given.ignore)
        ignored = (*given.ignore, *recognition.telling)
        description = Description(
            columns=recognition.columns if recognition.same_label else given.columns,
            same_label=SameLabel() if recognition.same_label else None,
            ignore=ignored,
            drop_empty=True,
        )
        found = Findings()
        for pair in pairs(counted(streams, recognition, found), description, ColumnLayout()):
            found.add(pair)
    lengths = Lengths()
    sampled = [Record(p.query, p.positive, tuple(p.negatives)) for p in found.sample]
    if sampled:
        lengths.add(sampled, Tokenize(tokenizer), Prompts())
    longest = min(tokenizer.model_max_length, 512)
    return Inspection(name, recognition, given.ignore, found, first_rows, lengths, model, longest)


def _is_fraction(value: object) -> bool:
    try:
        return not float(value).is_integer()  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _rows(count: int) -> str:
    return f"{count:,} {'row has' if count == 1 else 'rows have'}"


def _pairs(count: int) -> str:
    return f"{count:,} {'pair is' if count == 1 else 'pairs are'}"

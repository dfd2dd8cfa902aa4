"""Chooses the settings of a run on own data by its size and its lengths, each with its reason."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from embedkit.data.pairs.lengths import sampled_lengths
from embedkit.data.pairs.records import Records
from embedkit.models.hub import load_tokenizer

_MEASURED = 2000
"""Rows whose texts are tokenized to choose the limits."""
_VALIDATED = 200
"""Documents whose pairs choose the step to export, as far as a tenth of all has as many."""
_MEASURED_EVERY = 50
"""Steps between two measurements of the pairs that choose the step."""
_STEPS = 300
"""Steps of a run on data that are too few for so many in one pass."""
_PASSES = 10
"""Most passes over the data, after which a small encoder knows them by heart."""
_BATCH = 64
_RATE = 2e-5
"""The usual rate for batches of 16 pairs."""
_CUT = 0.01
"""Share of texts that may be longer than the limit."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that was chosen for the data."""

    key: str
    value: object
    reason: str


def settings(records: Records, model: str, *, held_out: bool) -> Iterator[Choice]:
    """Yield the keys of a recipe for ``records``, of which some were ``held_out`` before."""
    yield from _training(records, model)
    yield from _evaluation(records, held_out)


def _training(records: Records, model: str) -> Iterator[Choice]:
    rows, batch = len(records), _BATCH
    while batch > 4 and rows < 10 * batch:
        batch //= 2
    per_pass = max(1, rows // batch)
    passes = min(_PASSES, -(-_STEPS // per_pass))
    steps = per_pass * passes
    why = "as many pairs as a small GPU holds" if batch == _BATCH else f"{rows} rows are few"
    yield Choice("data.batch_size", batch, f"{why}; the others' documents are negatives")
    yield Choice("steps", steps, f"{passes} passes over {rows:,} rows, for about {_STEPS} steps")
    rate = float(f"{_RATE * (batch / 16) ** 0.5:.1g}")
    yield Choice("optim.lr", rate, f"{_RATE:g} is usual for 16 pairs; times sqrt({batch} / 16)")
    yield Choice("optim.warmup_steps", max(1, steps // 10), "a tenth of the steps")
    yield Choice("checkpoints.every", max(1, steps // 4), "a run that is stopped loses a quarter")
    lengths = sampled_lengths(records, load_tokenizer(model), _MEASURED)
    for side, roles in (("query", ("query",)), ("document", ("positive", "negatives"))):
        counts = sum((lengths.counts[role] for role in roles if role in lengths.counts), Counter())
        limit = next((size for size in (64, 128, 256) if _longer(counts, size) <= _CUT), 512)
        reason = f"{_longer(counts, limit):.1%} of the texts are longer"
        yield Choice(f"data.max_{side}_tokens", limit, reason)


def _longer(counts: Mapping[int, int], limit: int) -> float:
    """Return the share of texts that have more tokens than ``limit``."""
    return sum(texts for tokens, texts in counts.items() if tokens > limit) / sum(counts.values())


def _evaluation(records: Records, held_out: bool) -> Iterator[Choice]:
    documents = len({text for (text,) in records.table.scan(("positive",))})
    share = round(min(0.1, max(0.01, _VALIDATED / documents)), 3)
    yield Choice("validation.share", share, "the step that does best on these pairs is exported")
    yield Choice("validation.every", _MEASURED_EVERY, "they are measured so often")
    if held_out:
        yield Choice("evaluation.held_out", True, "retrieval of the documents that are held out")
        yield Choice("evaluation.verdict", True, "the run ends with what changed for whom")

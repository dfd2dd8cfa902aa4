"""Opens sources to verify that they are what their manifests say."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from embedkit.data.manifests.manifest import (
    Manifest,
    TextManifest,
    load_any_manifest,
    shipped_names,
)
from embedkit.data.pairs.records import open_manifest
from embedkit.data.text.texts import Texts
from embedkit.data.text.tokenized import prepare
from embedkit.errors import UserError
from embedkit.recipe import load_any_recipe


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """The outcome of opening one source."""

    name: str
    sound: bool
    remark: str
    """Number of rows or documents of a sound source; otherwise what is wrong with it."""
    warnings: tuple[str, ...] = ()


def chosen(names: Sequence[str], recipe: str | None) -> Sequence[str]:
    """Return ``names``, or those of the recipe's sources, or of all that come with embedkit."""
    if recipe and names:
        raise UserError("data check takes NAME... or --recipe, not both")
    if recipe:
        return [mix.manifest for mix in load_any_recipe(recipe).data.mix]
    return names or shipped_names()


def check(
    names: Sequence[str], tokenizer: PreTrainedTokenizerBase | None = None
) -> Iterator[SourceCheck]:
    """Open and verify the sources of manifests; with a tokenizer, the token ids of text too."""
    for name in names:
        yield _check(name, tokenizer)


def _check(name: str, tokenizer: PreTrainedTokenizerBase | None) -> SourceCheck:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            manifest = load_any_manifest(name)
            if isinstance(manifest, Manifest):
                remark = _check_pairs(manifest)
            else:
                remark = _check_text(manifest, tokenizer)
        except UserError as error:
            return SourceCheck(name, False, " ".join(str(error).split()))
    messages = dict.fromkeys(str(warning.message) for warning in caught)
    return SourceCheck(name, True, remark, tuple(messages))


def _check_pairs(manifest: Manifest) -> str:
    rows = f"{len(open_manifest(manifest))} rows"
    if not manifest.held_out:
        return rows
    return f"{rows}, {len(open_manifest(manifest, 'held_out'))} held out"


def _check_text(manifest: TextManifest, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Read the text; with a tokenizer, read its token ids, and write those that are not there."""
    texts = Texts.from_manifest(manifest)
    if tokenizer is None and manifest.source.kind == "hub":
        next(texts.documents(), None)
        return "opened; the rest is read by data prepare"
    if tokenizer is None:
        documents, held_out = texts.count()
        return _counted(documents - held_out, held_out if manifest.held_out else None)
    tokenized = prepare(texts, tokenizer)
    stores = [store for store in (tokenized.train, tokenized.held_out) if store is not None]
    for store in stores:
        store.verify()
    tokens = sum(store.num_tokens for store in stores)
    return f"{_counted(*map(len, stores))}, {tokens} tokens"


def _counted(documents: int, held_out: int | None = None) -> str:
    return f"{documents} documents" + ("" if held_out is None else f", {held_out} held out")

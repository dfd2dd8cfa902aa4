"""Opening sources to see that they are what their manifests say."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from embedkit.data.manifests.manifest import (
    Manifest,
    TextManifest,
    load_any_manifest,
    shipped_tables,
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
    """What there is of a sound source, else what is wrong with it."""
    warnings: tuple[str, ...] = ()


def chosen(names: Sequence[str], recipe: str | None) -> Sequence[str]:
    """Return ``names``, or those of the recipe's sources, or of all that come with embedkit."""
    if recipe and names:
        raise UserError("data check takes NAME... or --recipe, not both")
    if recipe:
        return [mix.manifest for mix in load_any_recipe(recipe).data.mix]
    return names or [name for name, _ in shipped_tables()]


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
    return SourceCheck(
        name, True, remark, tuple(dict.fromkeys(str(warning.message) for warning in caught))
    )


def _check_pairs(manifest: Manifest) -> str:
    remark = f"{len(open_manifest(manifest))} rows"
    if manifest.held_out:
        remark += f", {len(open_manifest(manifest, 'held_out'))} held out"
    return remark


def _check_text(manifest: TextManifest, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Read the text; with a tokenizer, its token ids, which are made where they are not there."""
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
    counted = _counted(*map(len, stores))
    return f"{counted}, {sum(store.num_tokens for store in stores)} tokens"


def _counted(documents: int, held_out: int | None = None) -> str:
    counted = f"{documents} documents"
    return counted if held_out is None else f"{counted}, {held_out} held out"

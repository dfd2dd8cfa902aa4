"""The sources of a recipe's mixture: their names, their weights, and objects in place of files."""

from collections.abc import Mapping, Sequence

from pydantic import PositiveFloat

from embedkit.config import Section
from embedkit.errors import UserError


class Mix(Section):
    """A source in a mixture."""

    manifest: str
    """The source's manifest: a name under ``data_manifests/`` without ``.toml``, a path, or a key
    of ``sources=``."""
    weight: PositiveFloat | None = None
    """Share of the draws that read this source, before normalisation; a step of fine-tuning is one
    draw. Weights are set for every source of a mixture or for none. Without weights, a source of
    text comes up by its rows, and a source of pairs by ``data.alpha``."""


def weights_of(mix: Sequence[Mix]) -> list[float]:
    """Return the weights that a mixture sets, one for each source, or none at all.

    Raises:
        ValueError: some sources have a weight and others have none.
    """
    weights = [source.weight for source in mix if source.weight is not None]
    if weights and len(weights) < len(mix):
        missing = [source.manifest for source in mix if source.weight is None]
        raise ValueError(
            f"weight is missing for {', '.join(missing)}: give every source one, or none"
        )
    return weights


def manifests_of(mix: Sequence[Mix], given: Mapping[str, object]) -> list[str]:
    """Return the manifests of a mixture, each once; objects in ``given`` stand in for some.

    Raises:
        UserError: ``given`` has a source that the mixture does not mention.
    """
    names = list(dict.fromkeys(source.manifest for source in mix))
    if unknown := sorted(set(given) - set(names)):
        raise UserError(
            f"sources: {', '.join(unknown)} is not in the recipe's data.mix, which has "
            f"{', '.join(names)}"
        )
    return names

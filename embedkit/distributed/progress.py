"""Progress bars: gone when the work is done, and shown by rank 0 alone."""

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TextColumn

from embedkit.distributed.ranks import is_main


def progress_bar(
    *columns: str | ProgressColumn, console: Console | None = None, shown: bool = True
) -> Progress:
    """Return a bar of such columns, on standard error by default.

    A string is a column in the format of rich, such as ``{task.description}``, without markup.
    """
    parts = [TextColumn(each, markup=False) if isinstance(each, str) else each for each in columns]
    return Progress(
        *parts,
        console=console or Console(stderr=True),
        transient=True,
        disable=not (shown and is_main()),
    )

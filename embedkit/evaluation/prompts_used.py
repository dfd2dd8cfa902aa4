"""Lines that say which prompts stood before the texts of tasks, and whose prompts they were."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

_WIDTH = 100


def origins(tasks: Iterable[str]) -> str:
    """Return whose prompts were used for how many tasks, in one line."""
    counts = Counter(tasks)
    if counts.keys() <= {"none"}:
        return "prompts: none"
    used = (f"{origin} for {n} task{'s' * (n > 1)}" for origin, n in counts.items())
    return f"prompts: {', '.join(used)}"


def listed(tasks: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each prompt with its tasks, and no line if no task has a prompt.

    Args:
        tasks: prefixes of each task by side, and of an aggregate by ``<part>-<side>``.
    """
    tasks_of: dict[str, list[str]] = {}
    for name, prompts in tasks.items():
        for part, by_side in _parts(name, prompts):
            tasks_of.setdefault(_written(by_side), []).append(part)
    if tasks_of.keys() <= {"none"}:
        return []
    lines = (f"{prompt}: {', '.join(names)}" for prompt, names in tasks_of.items())
    return [
        textwrap.fill(
            line,
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    ]


def _parts(name: str, prompts: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield a task with its prompts by side; of an aggregate its parts, unless all are alike."""
    by_part: dict[str, dict[str, str]] = {}
    for key, prompt in prompts.items():
        part, _, side = key.rpartition("-")
        by_part.setdefault(part or name, {})[side] = prompt
    if len({_written(by_side) for by_side in by_part.values()}) == 1:
        yield name, next(iter(by_part.values()))
    else:
        yield from by_part.items()


def _written(by_side: Mapping[str, str]) -> str:
    """Return the prompts of all sides, once if they are alike."""
    quoted = {side: repr(prompt) if prompt else "none" for side, prompt in by_side.items()}
    if len(set(quoted.values())) <= 1:
        return next(iter(quoted.values()), "none")
    return ", ".join(f"{side} {prompt}" for side, prompt in quoted.items())

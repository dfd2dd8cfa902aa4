"""Memory of a process on Linux: resident now, and at most since it was told to forget."""

from pathlib import Path

RETURNED = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
"""For a process whose peak is to be what it uses. glibc keeps freed blocks in a heap that becomes
fragmented; with this, blocks of 128 KiB and more go back to the system when they are freed."""


def bytes_now() -> int:
    """Resident bytes of this process."""
    return _status("VmRSS")


def bytes_at_most() -> int:
    """The most bytes resident at once since the process began, or since ``forget``."""
    return _status("VmHWM")


def forget() -> None:
    """Let the peak count from here."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith(name)]
    return int(line.split()[1]) * 1024

"""Versions of distributions, installed or not."""

from importlib.metadata import version

from embedkit.storage.versions import versions_of


def test_a_package_that_is_only_on_the_path_is_not_installed() -> None:
    assert versions_of(["pydantic", "no-such-distribution"]) == {
        "pydantic": version("pydantic"),
        "no-such-distribution": "not installed",
    }

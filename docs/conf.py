"""Settings with which Sphinx builds the pages of this folder into a site: ``make docs``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "embedkit"
author = "The embedkit authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "key_reference"]
html_theme = "furo"
html_title = "embedkit"
html_show_copyright = False
# Headings get the anchors that a forge gives them.
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
nitpick_ignore_regex = [
    # The README links to files of the repository; tests/test_docs.py sees that they exist.
    ("myst", r"benchmarks/.*|[A-Z]+\.md"),
    # Signatures name types that have no page: those of other libraries, and internal ones.
    ("py:.*", r".*"),
]

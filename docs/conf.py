"""The documentation as a site: pip install '.[docs]' && sphinx-build -W --keep-going docs site."""

from importlib import metadata

project = "psgd"
author = "the psgd developers"
project_copyright = "the psgd developers"
release = metadata.version("psgd")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"psgd {release}"
html_show_copyright = False

# The pages are read on GitHub as well: its names for headings, and plain links between files.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]  # some blocks show output

default_role = "literal"  # docstrings set code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say dtypes and shapes
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

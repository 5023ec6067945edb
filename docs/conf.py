"""Settings of the documentation: `hatch run docs:build`. Nothing in the built pages is loaded from outside."""

from importlib.metadata import version as _version

project = "lox"
author = "the lox authors"
copyright = "the lox authors"
version = release = _version("lox-core")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "code"  # single backquotes in docstrings are code, as they are in Markdown
highlight_language = "python3"
pygments_style, pygments_dark_style = "tango", "monokai"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text says what an argument is; signatures with types do not fit a line
autodoc_preserve_defaults = True
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "lox"
html_static_path = ["_static"]
html_css_files = ["lox.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

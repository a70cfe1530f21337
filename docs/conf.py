"""The documentation site: `make docs` builds it, warnings are errors. Pages are Markdown, so they read well without it.

The examples of the gallery run when the site is built; real nodes start there, so a build takes minutes the first time
and seconds afterwards (sphinx-gallery runs an example again when it changed).
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # the site describes the tree that it stands in

import chicle_elastic  # noqa: E402

project = "Chicle"
author = "The Chicle developers"
copyright = f"2026, {author}"
release = chicle_elastic.__version__
version = ".".join(release.split(".")[:2])
# The folder of this build on the site: a tag builds its release, everything else is "dev".
site_version = release if os.environ.get("GITHUB_REF_NAME", "").startswith("v") else "dev"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",  # both kinds of docstring here: NumPy's in the estimators, Google's everywhere else
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "_ext.site_pages",
]
exclude_patterns = [
    "_build",
    "_ext",
    "gallery/**/*.ipynb",
    "gallery/**/*.py.md5",
    "gallery/**/*.zip",
    "sg_execution_times.rst",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4  # links like page.md#a-section, as GitHub has them

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # a docstring names types, shapes and units
autodoc_default_options = {
    "members": True,
    # Methods of the estimators' own base classes are theirs; what scikit-learn and Python have is on their pages.
    "inherited-members": "BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin, Enum, Exception, ABC",
    # Of scikit-learn's metadata routing: their pages link into its own site.
    "exclude-members": "set_fit_request, set_partial_fit_request, set_score_request, get_metadata_routing",
}
napoleon_use_rtype = False
napoleon_use_ivar = True

# A build without the internet has no inventories, and no warning either: links to other projects are plain text then.
intersphinx_mapping = (
    {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
    }
    if os.environ.get("CHICLE_DOCS_INTERSPHINX")
    else {}
)

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1,
    "remove_config_comments": True,
    "backreferences_dir": None,
    "image_scrapers": ("matplotlib", "_ext.gallery_figures.scrape"),
    "ignore_repr_types": r"matplotlib\.",
}

smartquotes = False  # readers copy options and commands from docstrings

html_theme = "pydata_sphinx_theme"
html_title = f"Chicle {version}"
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher", "version-switcher"],
    "switcher": {"json_url": "../versions.json", "version_match": site_version},
    "check_switcher": False,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1)"]

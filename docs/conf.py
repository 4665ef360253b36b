"""Configuration of the documentation site: ``make docs``, then open ``build/docs/index.html``.

The source folder is the root of the repository, so that links between pages also work on GitHub.
Neither building nor viewing the site needs a network.
"""

import csv
import io
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[1]
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # `python` of notebooks
OURS = ("benchmark", "methods", "datamodules")
OTHERS = {"torch", "lightning", "numpy", "pandas", "jsonargparse", "rich", "pydantic_core", "markupsafe"}
OTHERS |= {"matplotlib", "pytest", "_pytest", "Figure", "PIL", *sys.stdlib_module_names}
FIELDS = {"pydantic", "annotated_types", "FieldInfo", r"[GL][et]", "AllowInfNan", "NoneType", r"\d+", r"1e\+300"}

project = "fssl-bench"
author = "The fssl-bench authors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
version = release

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
root_doc = "docs/index"
# A user's own tables in the same folder are not pages.
TABLES = re.findall(r"<\.\./(results/tables/[\w-]+)>", (ROOT / "docs/results.md").read_text(encoding="utf-8"))
include_patterns = ["*.md", "docs/**", *(f"{table}.md" for table in TABLES), "results/archive/*.md"]
exclude_patterns = [
    ".*",
    "data",
    "build",
    "tests",
    "results/runs",
    "docs/examples",
    "docs/_*",
]
highlight_language = "none"  # indented blocks are commands and their output
nitpicky = True
# Pages of Python and of other packages (FIELDS: of what annotates records) are not looked up, since a build needs no
# network; the second line has parts of aliases, private bases, and names outside __all__.
nitpick_ignore_regex = [
    (r"py:.*", rf"({'|'.join(OTHERS | FIELDS)})([.\[].*)?"),
    (
        r"py:.*",
        r"nn\.Module|(dict|list|tuple)\[.*|.*\.(_\w+|Found|Name)",
    ),
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # generated tables begin at the third level
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds a cell; a few tens on idle cores
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_use_type_comments = False  # there are none, and looking for them takes long
viewcode_follow_imported_members = False  # or its list links to a page of Python's own types, which does not exist
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "fssl-bench"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["site.css"]
html_js_files = ["sort.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # browsers refuse to load pages from disk for them
html_theme_options = {"navigation_with_keys": True}


class LinksToCode(SphinxTransform):
    """Turn links to a module's file into links to its API page, and links to folders into text."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Change the page's links."""
        folder = (ROOT / self.env.docname).parent
        for node in list(self.document.findall(download_reference)):
            path = (folder / node["reftarget"]).resolve().relative_to(ROOT)
            if path.suffix == ".py" and path.parts[0] in OURS:
                module = ".".join(path.with_suffix("").parts)
                link = pending_xref(
                    "", *node.children, refdomain="py", reftype="mod", reftarget=module, refexplicit=True
                )
                link["refdoc"], link["refwarn"] = self.env.docname, True
                link.source, link.line = node.source, node.line
                node.replace_self(link)
        for node in list(self.document.findall(pending_xref)):
            if node["reftype"] == "myst" and (folder / node["reftarget"]).is_dir():
                node.replace_self(node.children)


def docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn the Markdown tables and Google's sections of a docstring into reStructuredText.

    Napoleon is called here because otherwise it would read the text before a colon in the first line of an attribute
    as its type. Ours is a sentence.
    """
    out: list[str] = []
    for line in lines:
        row = re.fullmatch(r"(\s*)\|(.*)\|\s*", line)
        if row is None:
            out.append(re.sub(r"(``.*?``)|\|", lambda found: found[1] or r"\|", line))
            continue
        indent, cells = row[1], [cell.strip() for cell in row[2].split(" | ")]
        if all(re.fullmatch(r":?-+:?", cell) for cell in row[2].replace(" ", "").split("|")):
            continue  # the line below the head
        if not out or not out[-1].startswith(f"{indent}   "):
            out += ["", f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
        out += [f"{indent}   {'  ' if i else '* '}- {cell}" for i, cell in enumerate(cells)]
    what = "object" if what in {"attribute", "data", "property"} else what
    lines[:] = GoogleDocstring(out, Config(napoleon_use_rtype=False), app, what, name, obj, options).lines()


UNKNOWN: set[str] = set()
"""Names that are not ours, cached because every lookup searches thousands of objects."""


def by_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement) -> nodes.Node | None:
    """Resolve bare names in docstrings, such as errors, and names of aliases, which are not classes."""
    target = node["reftarget"]
    if node.get("refdomain") != "py" or node.get("refspecific") or target in UNKNOWN:
        return None
    node["refspecific"] = True
    domain = env.domains.python_domain
    found = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, text)
    if found is None:
        UNKNOWN.add(target)
    return found


def listed(package: str, without: str | None) -> str:
    """A section for each module of a package that has something to read."""
    names = {file.stem for file in (ROOT / package.replace(".", "/")).glob("*.py")}
    names -= {"__init__", "__main__", without}
    return "\n\n".join(f"module {package}.{name}" for name in sorted(names))


def cells(file: Path) -> str:
    """The cells of a result table that have runs, with the ids of these."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    if "runs" not in rows[0]:
        return ""
    shown = [row for row in rows if row["n"] not in {"", "0"}]
    every = list(rows[0])
    names = [*every[: every.index("ours")], "ours", "ci95", "n", "published", "status", "runs"]
    names = [name for name in names if any(row.get(name) for row in shown)]
    out = io.StringIO()
    csv.writer(out).writerows([names, *([row[name] for name in names] for row in shown)])
    return (
        "\n\n## Cells and their runs\n\nA run's folder is `results/runs/*-<id>`.\n\n"
        f"```{{csv-table}}\n:header-rows: 1\n:class: cells\n\n{out.getvalue()}```\n"
    )


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add to a page what is generated: the modules of a package; the pictures, files and cells of a result table."""
    if docname.startswith("docs/api/"):
        source[0] = re.sub(
            r"^modules of (\S+)(?: without (\S+))?$", lambda found: listed(found[1], found[2]), source[0], flags=re.M
        )
        module = r"## \1\n\n```{eval-rst}\n.. automodule:: \1\n```"
        source[0] = re.sub(r"^module (\S+)$", module, source[0], flags=re.M)
    if docname.startswith("results/tables/"):
        table = ROOT / docname
        pictures = "".join(f"![{one.stem}]({one.name})\n\n" for one in sorted(table.parent.glob(f"{table.name}*.svg")))
        files = f"All numbers: [CSV]({table.name}.csv). For a paper: [LaTeX]({table.name}.tex).\n\n"
        source[0] = re.sub(r"^##", f"{files}{pictures}##", source[0], count=1, flags=re.M)
        source[0] += cells(table.with_suffix(".csv"))


def setup(app: Sphinx) -> None:
    """Register our transform and handlers."""
    app.connect("source-read", fill)
    app.add_transform(LinksToCode)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("missing-reference", by_name)

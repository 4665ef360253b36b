"""The federation loop, its engine, records, tables and command line."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _import_neighbours() -> None:
    """Import ``methods`` and ``datamodules`` from the folder that holds this package.

    Their names are common, and a folder of the same name, e.g. in the working directory, must not replace them.

    Raises:
        ImportError: another package of that name has been imported already.
    """
    sys.path.insert(0, str(ROOT))
    try:
        import datamodules
        import methods
    finally:
        sys.path.remove(str(ROOT))
    for package in (datamodules, methods):
        name = package.__name__
        if package.__file__ is None or Path(package.__file__).resolve() != ROOT / name / "__init__.py":
            raise ImportError(
                f"another package named '{name}' ({package.__file__ or list(package.__path__)}) was imported before "
                f"fssl-bench's own in {ROOT}: import benchmark first, or give that package another name"
            )


_import_neighbours()

"""``python -m benchmark``."""

import sys

from benchmark.cli import main

sys.exit(main())

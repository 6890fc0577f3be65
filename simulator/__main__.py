"""``python -m simulator``: the ``forerun`` command."""

import sys

from simulator.cli import main

sys.exit(main())

"""``python -m forerun``: the ``forerun`` command."""

import sys

from simulator.cli import main

sys.exit(main())

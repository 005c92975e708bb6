"""``python -m systolic``: the command line."""

import sys

from systolic.cli import main

sys.exit(main())

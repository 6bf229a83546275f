"""`python -m idmetric.cli.bench`."""

import sys

from idmetric.cli.bench import main

sys.exit(main())

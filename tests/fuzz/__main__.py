"""`python -m tests.fuzz --count 10000 --seed 0`: malformed inputs for all readers, and a table of what became of them.

Exit status: 0 if each was refused by a typed error or accepted, in bounded time and memory; 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.readers import all_readers
from tests.fuzz.run import as_json, counts, run, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="inputs, at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other inputs (default: %(default)s)")
    parser.add_argument("--reader", action="append", help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    args = parser.parse_args()
    shares = {name: reader.share for name, reader in all_readers().items()}
    if unknown := [name for name in args.reader or [] if name not in shares]:
        parser.error(f"no reader {unknown[0]!r}; there are {', '.join(shares)}")
    wanted = counts(
        {name: share for name, share in shares.items() if not args.reader or name in args.reader}, args.count
    )
    found = run(wanted, args.seed, verbose=True)
    print(table(found))
    if args.json:
        args.json.write_text(as_json(found) + "\n", encoding="utf-8")
    return 1 if any(tally.crashes for tally in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

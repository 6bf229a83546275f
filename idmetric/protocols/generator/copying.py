"""Which methods return copies of references instead of new pictures?"""

from __future__ import annotations

from idmetric.evaluate.copies import MANY
from idmetric.protocols.common.result import Result, Value


def copying(result: Result) -> list[str]:
    """The methods with a share of copies above `MANY`."""
    shares = {str(row["method"]): row.get("copies") for row in result.rows if row.get("group") == "all"}
    return [method for method, share in shares.items() if isinstance(share, Value) and share.value > MANY]

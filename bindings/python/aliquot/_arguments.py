"""What callers of this package pass where several values are wanted."""

from typing import Any, List


def items(what: str, value: Any, of: str, example: str) -> List[Any]:
    """The values of an argument as a list.  A str has values too, its letters,
    which nobody means; and one value alone has none."""
    if not isinstance(value, (str, bytes)):
        try:
            each = iter(value)
        except TypeError:
            pass
        else:
            return list(each)
    raise TypeError("%s=%.80r is one %s; give a list of %s, as in %s" %
                    (what, value, type(value).__name__, of, example)) from None

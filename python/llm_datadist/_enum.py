"""An integer enum that prints its name on every supported Python version."""

from enum import IntEnum


class NamedIntEnum(IntEnum):
    """Compare and compute as an int, print as `Class.MEMBER`.

    The text of a plain IntEnum changed with Python 3.11; logs and messages must not.
    """

    def __str__(self):
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec):
        return format(int(self), spec) if spec else str(self)

"""One logger, and notices that are given once."""

from __future__ import annotations

import logging

logger = logging.getLogger("systolic")


class Notices:
    """Gives each notice once in the life of its owner, so that a cast or a fallback does not repeat with every batch.

    Example:
        >>> notices = Notices()
        >>> notices.give("labels: int64 becomes int32")
        True
        >>> notices.give("labels: int64 becomes int32")
        False
    """

    def __init__(self) -> None:
        self._given: set[str] = set()

    def give(self, text: str) -> bool:
        """Log ``text`` at level WARNING unless it was given before; returns whether it was given now."""
        if text in self._given:
            return False
        self._given.add(text)
        logger.warning(text)
        return True

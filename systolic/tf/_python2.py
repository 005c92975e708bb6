"""Files that are of Python 2: told as such, instead of by what Python 3 stumbles over."""

from __future__ import annotations

import ast
import re

_MESSAGES = re.compile(
    "Missing parentheses in call to|multiple exception types must be parenthesized|leading zeros in decimal|"
    "inconsistent use of tabs|invalid decimal literal|Function parameters cannot be parenthesized"
)
_LINES = re.compile(r"^\s*raise\s+[\w.]+\s*,|`|<>|\b[uU][rR]['\"]|^\s*(print|exec)\s")


def syntax_problem(error: SyntaxError) -> str:
    """What to tell of a file that does not parse.

    Example:
        >>> syntax_problem(SyntaxError("invalid syntax", ("a.py", 1, 1, "raise ValueError, 'x'")))
        'the syntax of Python 2 (invalid syntax); convert the file, as with 2to3'
    """
    if isinstance(error, TabError) or _MESSAGES.search(error.msg) or _LINES.search(error.text or ""):
        return f"the syntax of Python 2 ({error.msg}); convert the file, as with 2to3"
    return f"not the syntax of Python 3 ({error.msg})"


def printing_line(tree: ast.AST) -> int | None:
    """The line of a ``print >>file``, which Python 3 reads as a shift, and fails at when it runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift):
            left = node.left
            if isinstance(left, ast.Name) and left.id == "print":
                return node.lineno
    return None

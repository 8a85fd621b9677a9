"""Docstrings below the fields of a class, which Python discards: read from the source, and nothing is imported.

Code in them is between two backticks, as documentation generators want it, and between single ones here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise


def field_docs(kind: type) -> dict[str, str]:
    """Field -> the docstring below it, in the class or in that of its bases which last declares it."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if "__annotations__" in vars(base) and base.__module__.partition(".")[0] != "pydantic":
            docs |= _own_docs(base)
    return docs


@cache
def _own_docs(kind: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ").replace("``", "`")
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }

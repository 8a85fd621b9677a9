"""Messages of the product as Python calls give them: arguments by their names where a command line has options."""

from __future__ import annotations

import re

ARGUMENTS = {
    "methods": "methods",
    "allow-code": "allow_code=True",
    "run-id": "run_id",
    "out": "out",
    "device": "device",
    "workers": "workers",
    "parallel": "parallel",
    "seeds": "seeds",
    "seed": "seed",
    "zip": "zipped",
    "target": "targets",
}
"""Option of a command, without its dashes -> argument of the function of the same name"""
_OPTION = rf"(?<![\w-])--({'|'.join(sorted(ARGUMENTS, key=len, reverse=True))})(?![\w-])"


def in_python(message: str) -> str:
    """The message with arguments in place of options, and ``argument = value:`` where it begins with one."""
    message = re.sub(rf"^{_OPTION} (?=[^\s:]+:)", lambda found: f"{ARGUMENTS[found[1]]} = ", message)
    return re.sub(_OPTION, lambda found: ARGUMENTS[found[1]], message)

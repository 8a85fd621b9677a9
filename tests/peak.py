"""How much memory a refusal takes: in a process of its own, by the largest that it ever was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
{imports}
def peak_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
before_kb, path = peak_kb(), Path(sys.argv[1])
try:
    {call}
    print("nothing was refused")
except ValueError as error:
    print(error)
print((peak_kb() - before_kb) / 1e3)
"""


def refusal(imports: str, call: str, path: Path) -> tuple[str, float]:
    """(what ``call`` says of ``path`` when it refuses it, MB by which the process grew meanwhile at most)."""
    command = [sys.executable, "-c", PROGRAM.format(imports=imports, call=call), str(path)]
    said, grown_mb = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return said, float(grown_mb)

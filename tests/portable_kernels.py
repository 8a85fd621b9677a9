"""Portable numerics in all processes of tests, as commands have them for portable scenarios; imported before NumPy.

Commands that are forked (`tests.warm`) cannot start again with other kernels, and bits are those of every processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PRINT = """
import json, os
from edge.protocol import portable
print(json.dumps(portable.training_environment(os.environ)))
"""

if "numpy" not in sys.modules:
    root = Path(__file__).resolve().parents[1]
    asked = subprocess.run([sys.executable, "-c", PRINT], cwd=root, check=True, capture_output=True, text=True)
    chosen = json.loads(asked.stdout)
    for name in os.environ.keys() - chosen:
        del os.environ[name]
    os.environ.update(chosen)

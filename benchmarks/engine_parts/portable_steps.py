"""Steps of FedAvg with the kernels of this process: ``-m benchmarks.engine_parts.portable_steps INSTRUCTIONS MODELS``.

``MODELS`` is JSON, name -> [scenario, steps of a visit]. Each line on stdin is a name; the answer is the CPU
seconds of each step of one visit, which other work on the machine lengthens less. One process, one thread.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch

from benchmarks.engine_parts.steps import Product
from edge.protocol.portable import PORTABLE, trains_portably


def main(instructions: str, models: str) -> None:
    """Answer requests until stdin ends."""
    assert trains_portably(os.environ) == (instructions == PORTABLE)
    torch.set_num_threads(1)
    overrides = ("method=fedavg", f"train.instructions={instructions}")
    products = {
        name: Product(scenario, overrides, steps, time.process_time)
        for name, (scenario, steps) in json.loads(models).items()
    }
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(products[json.loads(line)].visit({})[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

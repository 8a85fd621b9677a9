"""The operations of secure aggregation on one core of this host: the figures of `costmodel/fleet/secagg.toml`.

Medians of CPU time. A random stream of a million numbers is expanded by AES-CTR and added mod 2^32; keys are agreed on
Curve25519; numbers of 31 bits are multiplied, reduced and added up, as the coded masks of LightSecAgg are. Needs
``cryptography``, which the extra ``flower`` brings.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

NUMBERS = 1_000_000
PRIME = 2**31 - 1
CALLS = 100


def seconds(call: Callable[[], object]) -> float:
    """The median CPU time of a call."""
    times = []
    for _ in range(CALLS):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return statistics.median(times)


def main() -> None:
    """Measure, and print one JSON object."""
    total, nothing = np.zeros(NUMBERS, np.uint32), bytes(4 * NUMBERS)

    def stream() -> None:
        cipher = Cipher(algorithms.AES(os.urandom(16)), modes.CTR(bytes(16))).encryptor()
        np.add(total, np.frombuffer(cipher.update(nothing), np.uint32), out=total)

    own, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    pieces = np.random.default_rng(0).integers(0, PRIME, NUMBERS, np.uint64)
    coded = np.zeros(NUMBERS, np.uint64)

    def products() -> None:
        np.add(coded, pieces * np.uint64(12345) % np.uint64(PRIME), out=coded)

    figures = {
        "stream_bytes_per_second": 4 * NUMBERS / seconds(stream),
        "agreement_seconds": seconds(lambda: own.exchange(other)),
        "field_products_per_second": NUMBERS / seconds(products),
    }
    print(json.dumps({name: float(f"{figure:.3g}") for name, figure in figures.items()}))


if __name__ == "__main__":
    main()

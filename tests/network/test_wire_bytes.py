"""What a message weighs on the wire, as the network interfaces count it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from costmodel.network import tcp
from tests.network.lab import Lab
from tests.network.measure import download, error_percent, upload
from tests.network.peer import SERVER

PAYLOAD_NBYTES = 5_000_000


@pytest.mark.parametrize("way", ["down", "up"])
def test_the_interface_counts_what_the_model_charges(
    way: str, make_lab: Callable[..., Lab], show: Callable[[str], None]
) -> None:
    # Shaped at the sender's own interface, where nothing is dropped and sent again.
    with make_lab(0.0, down=[float("inf")], up=[20e6], server_down=20e6) as lab:
        sender, send = (SERVER, download) if way == "down" else (lab.clients[0], upload)
        lab.settle()
        before = lab.sent_nbytes(sender)
        nbytes = send(lab, [PAYLOAD_NBYTES]).nbytes[0]
        lab.settle()
        counted = lab.sent_nbytes(sender) - before
    predicted = tcp.wire_bits(float(nbytes)) / 8
    bare, full = error_percent(nbytes, counted), error_percent(predicted, counted)
    show(
        f"\n{way}: {nbytes} bytes charged, {counted} on the wire: model {full:+.2f} %, without the header {bare:+.2f} %"
    )
    assert abs(full) <= 1.0
    assert abs(bare) > 3.0

"""Bytes and seconds of secure aggregation, by hand and beside the papers' figures."""

from __future__ import annotations

import pytest

from costmodel.secure_aggregation import Exchange, Kind, SecureAggregation, Wire, expansion, rates


def protocol(kind: Kind, clients: int, numbers: int, shares: int, wire: Wire = "published") -> SecureAggregation:
    return SecureAggregation(kind, clients, numbers, shares, -(-2 * shares // 3), wire=wire)


@pytest.mark.parametrize(("clients", "numbers", "factor"), [(2**10, 2**20, 1.7349), (2**14, 2**24, 1.9852)])
def test_the_expansion_of_secagg_is_that_of_its_paper(clients: int, numbers: int, factor: float) -> None:
    """Bonawitz et al., CCS 2017, abstract: 1.73 and 1.98."""
    assert expansion(clients, numbers) == pytest.approx(factor, abs=5e-5)


def test_the_phases_of_secagg_send_what_its_paper_counts() -> None:
    clients, numbers = 1024, 2**20
    secagg = protocol("secagg", clients, numbers, clients)
    survivor = secagg.unmask(clients - 1, 0)
    phases = (secagg.setup(), secagg.share(), secagg.collect(), survivor)
    beside_numbers = sum(phase.bytes_down + phase.bytes_up for phase in phases) - 4 * numbers
    # 2 n a_K + (5 n - 4) a_S + n ceil(log2 n), in bits
    assert 8 * beside_numbers == 2 * clients * 256 + (5 * clients - 4) * 256 + clients * 10


def test_secagg_plus_as_flower_sends_it() -> None:
    # A model of 21,840 weights, and their own weight; 11 shares.
    flower = protocol("secagg+", 100, 21_841, 11, "flower")
    assert (flower.setup().bytes_down, flower.setup().bytes_up) == (0, 430)
    assert (flower.share().bytes_down, flower.share().bytes_up) == (430 * 11, 612 * 10)
    assert (flower.collect().bytes_down, flower.collect().bytes_up) == (612 * 10, 8 * 21_841)
    assert flower.unmask(8, 2) == Exchange(0, 52 * 8 + 324 * 2)
    sent = 430 + 6_120 + 174_728 + 520
    assert sent == flower.setup().bytes_up + flower.share().bytes_up + 8 * 21_841 + flower.unmask(10, 0).bytes_up
    assert sent == 181_798  # 182 kB, for a model of 87 kB
    # A million weights and 51 shares: 8.03 MB; packed it would be half.
    large = protocol("secagg+", 1000, 1_000_001, 51, "flower")
    assert large.setup().bytes_up + large.share().bytes_up + large.masked_nbytes == 8_031_038
    assert protocol("secagg+", 1000, 1_000_001, 51).masked_nbytes == 4_000_004


def test_lightsecagg_sends_six_models() -> None:
    light = SecureAggregation("lightsecagg", 100, 1_000_000, 100, 70, 50)
    # Coded masks of d / 20 for 99 others; the masked model; one sum of coded masks.
    assert light.share().bytes_up == 99 * 50_000 * 4
    assert light.collect().bytes_up == 4_000_000
    assert light.collect().bytes_down == 99 * 50_000 * 4
    assert light.unmask(69, 30).bytes_up == 50_000 * 4
    sent = light.share().bytes_up + light.collect().bytes_up + light.unmask(69, 30).bytes_up
    assert sent / 4_000_000 == 6.0


def test_a_client_expands_k_streams_and_the_server_one_for_each_survivor_and_k_minus_1_for_each_dropout() -> None:
    plus, rate = protocol("secagg+", 100, 1_000_000, 11), rates()
    stream = 4_000_000 / rate.stream_bytes_per_second
    agreements = plus.share().seconds + plus.collect().seconds - 11 * stream
    assert agreements == pytest.approx(2 * 10 * rate.agreement_seconds)
    assert plus.server_seconds(90, 0) == pytest.approx(90 * stream)
    assert plus.server_seconds(90, 3) == pytest.approx(120 * stream + 30 * rate.agreement_seconds)

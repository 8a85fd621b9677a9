"""The shipped rows are complete and anchored to published figures; a bad row is refused by file, row and key."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from costmodel.fleet.codec_costs import CodecRates
from costmodel.fleet.devices import (
    Device,
    MeasuredStep,
    Network,
    basis,
    devices,
    figures,
    networks,
    own_rows,
    read_rows,
)
from costmodel.fleet.model_demand import Operations, speed

ROW = {
    "flops_per_second": "{ conv = 1e9, depthwise = 2e8 }",
    "step_seconds": "0",
    "modes": "[1.0, 0.5]",
    "memory_bytes": "1_000_000",
    "train_watts": "5",
    "idle_watts": "0.0",
    "clock_hz": "1e9",
    "codec_slowdown": "3",
    "memory_bytes_per_second": "5e9",
    "source": '"a bench"',
    "year": "2024",
    "assumed": "false",
}
SPEEDS = {"conv": 1e9, "depthwise": 2e8}
TOASTER = Device(
    "toaster", SPEEDS, 0.0, (1.0, 0.5), 1_000_000, 5.0, 0.0, 1e9, "a bench", 2024, (), codec_slowdown=3.0,
    memory_bytes_per_second=5e9,
)  # fmt: skip
LINE = """
[string]
down_bits_per_second = 8
up_bits_per_second = 4.5
rtt_seconds = 0
goodput = true
sigma_down = 0
sigma_up = 0.25
transmit_watts = 1
receive_watts = 2
transmit_joules_per_bit = 3e-7
receive_joules_per_bit = 0
base_watts = 0.5
tail_watts = 0.75
tail_seconds = 11
source = "two tins"
year = 1970
assumed = false
"""
MOBILENET_V2_MACS, RESNET18_MACS = 0.30e9, 1.82e9
"""Multiply-adds of one forward pass of an image of 224x224."""


def _file(folder: Path, **changes: str | None) -> Path:
    row = {key: value for key, value in (ROW | changes).items() if value is not None}
    path = folder / "rows.toml"
    path.write_text("[toaster]\n" + "\n".join(f"{key} = {value}" for key, value in row.items()))
    return path


def _batch_seconds(device: str, family: str, macs: float) -> float:
    """Of one step on 16 images: 2 FLOPs per multiply-add, training three times the forward pass."""
    row = devices()[device]
    return row.step_seconds + 6 * macs * 16 / row.throughput(family)


# --- what ships -------------------------------------------------------------------------------------------------------


def test_every_shipped_row_says_where_it_comes_from() -> None:
    assert len(devices()) == 21
    assert len(networks()) == 16
    rows: list[Device | Network] = [*devices().values(), *networks().values()]
    for row in rows:
        assert 2005 < row.year < 2100, row
        # The list says what is assumed; the source need not say it again.
        assert "assumed" not in row.source, row
    for device in devices().values():
        # Sources give what a step costs on two phones alone, and none what training draws from a Jetson.
        assert ("step_seconds" in device.assumed) != device.name.startswith(("phone-", "meizu-")), device
        assert not device.name.startswith("jetson-") or "train_watts" in device.assumed, device
        assert device.throughput("conv") > device.throughput("depthwise"), device
    for network in networks().values():
        # No source was read for what a radio draws; a tail has both a power and a length.
        assert {"transmit_watts", "receive_watts", "base_watts"} <= set(network.assumed), network
        assert (network.tail_watts > 0) == (network.tail_seconds > 0), network


LEFT_OUT = ("loss", "outages_per_hour", "outage_seconds", "promotion_seconds", "promotion_watts")


def test_a_raspberry_pi_5_trains_as_fast_as_published() -> None:
    # jafermarq/federated-embedded-vision: seconds for 20 batches of 16, 116.85 (ResNet-18) and 144.35 (MobileNetV2).
    assert _batch_seconds("raspberry-pi-5", "conv", RESNET18_MACS) == pytest.approx(5.84, rel=0.02)
    assert _batch_seconds("raspberry-pi-5", "depthwise", MOBILENET_V2_MACS) == pytest.approx(7.22, rel=0.02)
    # ViT-Ti, ViT-S and ViT-B reach 35, 50 and 69 GFLOP/s: one figure is within 20 % of the middle one alone (8.25 s).
    assert _batch_seconds("raspberry-pi-5", "attention", 4.3e9) == pytest.approx(8.25, rel=0.02)


def test_a_raspberry_pi_4_trains_as_fast_as_published() -> None:
    # The same source: 218.37 s (ResNet-18) and 305.47 s (MobileNetV2) for 20 batches of 16.
    assert _batch_seconds("raspberry-pi-4", "conv", RESNET18_MACS) == pytest.approx(10.92, rel=0.02)
    assert _batch_seconds("raspberry-pi-4", "depthwise", MOBILENET_V2_MACS) == pytest.approx(15.27, rel=0.02)
    # The model that the figure of its family was measured with has it under its own name.
    for board in (devices()["raspberry-pi-4"], devices()["raspberry-pi-5"]):
        assert board.throughput("resnet18-imagenet", "conv") == board.throughput("conv")


def test_rows_say_how_far_they_are_off_on_steps_that_they_were_not_fitted_to() -> None:
    # EdgeFlowerTune's log. WikiText: 11.3659, 14.1289 and 11.8274 s a step on Nanos, 170.1887, 174.3541, 170.3717,
    # 170.5589 and 170.6399 s on phones. A step of 8 x 64 tokens: 4 FLOPs a token for each of 18 (640 x 1024 + 2 x 640 x
    # 256 + 1024 x 640 + 3 x 640 x 2048) + 262,144 x 640 frozen weights, 6 for each of 737,280.
    frozen = 18 * (2 * 640 * 1024 + 2 * 640 * 256 + 3 * 640 * 2048) + 262_144 * 640
    flops = 8 * 64 * (4 * frozen + 6 * 737_280)
    assert flops == 551_215_431_680
    for name, seconds in (("jetson-nano", 37.3222 / 3), ("snapdragon-778g", 856.1134 / 5)):
        row = devices()[name]
        fitted, *held_out = row.measurements
        assert fitted.fitted and not any(step.fitted for step in held_out)
        assert row.throughput("attention") == pytest.approx(flops / seconds, rel=1e-3)
        assert fitted.measured_seconds == pytest.approx(seconds, rel=1e-4)
        for step in row.measurements:
            predicted = row.step_seconds + step.batch * step.flops_per_example / row.throughput("attention")
            assert step.predicted_seconds == pytest.approx(predicted, rel=1e-3)
    errors = {
        name: [round(step.predicted_seconds / step.measured_seconds - 1, 2) for step in devices()[name].measurements]
        for name in ("jetson-nano", "snapdragon-778g")
    }
    assert errors == {"jetson-nano": [0.0, 0.11], "snapdragon-778g": [0.0, 0.02, -0.81, -0.81, -0.84]}


PUBLISHED = {
    # Per image and training step of 224x224, in 1e9: FLOPs of convolutions (vectors of 16 output channels filled),
    # of 1x1 and of depthwise convolutions and of other matrix products, and numbers of element-wise work, counted by
    # edge.training.counts in timm's models; then seconds of 20 batches of 16 on a Raspberry Pi 5 and, where it can be
    # read, a Raspberry Pi 4 (jafermarq/federated-embedded-vision, README.md and plot.ipynb, 2023).
    "resnet18": ((10.5297, 0.1156, 0.0, 0.0031, 0.02), 116.851, 218.366),
    "resnet34": ((21.6279, 0.1156, 0.0, 0.0031, 0.03), 219.803, 407.243),
    "resnet50": ((11.5702, 12.7166, 0.0, 0.0123, 0.0854), 322.259, 652.536),
    "mobilenetv2_050": ((0.0217, 0.485, 0.0672, 0.0077, 0.0245), 73.653, 152.616),
    "mobilenetv2_100": ((0.0434, 1.6438, 0.1243, 0.0077, 0.0445), 144.351, 305.473),
    "mobilenetv3_small_075": ((0.0217, 0.198, 0.0381, 0.0061, 0.0112), 39.686, None),
    "mobilenetv3_small_100": ((0.0217, 0.2708, 0.0448, 0.0061, 0.0127), 47.393, None),
    "mobilenetv3_large_075": ((0.0217, 0.8324, 0.0958, 0.0077, 0.0295), 95.655, None),
    "mobilenetv3_large_100": ((0.0217, 1.1938, 0.1104, 0.0077, 0.0337), 114.605, None),
    "vit_tiny": ((0.1156, 0.0, 0.0, 7.3487, 0.0404), 59.784, None),
    "vit_small": ((0.2312, 0.0, 0.0, 27.2465, 0.0808), 165.038, 348.0),
    "vit_base": ((0.4624, 0.0, 0.0, 104.6893, 0.1616), 470.386, None),
    "efficientvit_b0": ((0.0217, 0.5022, 0.0569, 0.0309, 0.0213), 64.880, None),
    "efficientvit_b1": ((0.0217, 2.8492, 0.1581, 0.0755, 0.0547), 198.982, None),
    "efficientvit_b2": ((0.0434, 8.8799, 0.336, 0.2594, 0.1103), 456.305, None),
    "efficientvit_b3": ((0.0434, 22.5383, 0.6516, 0.468, 0.2037), 930.203, None),
    "mnasnet_075": ((0.0434, 1.1427, 0.1412, 0.0077, 0.0228), 116.133, None),
    "mnasnet_100": ((0.0434, 1.6983, 0.17, 0.0077, 0.0262), 144.697, None),
    "ghostnetv2_100": ((0.0217, 0.9243, 0.1262, 0.0077, 0.0652), 188.446, None),
    "ghostnetv2_130": ((0.0434, 1.4898, 0.1637, 0.0077, 0.0843), 254.472, None),
    "ghostnetv2_160": ((0.0434, 2.2502, 0.2009, 0.0077, 0.1036), 324.325, None),
}
FITTED_KINDS = ("conv.w64", "pointwise.w64", "channelwise", "linear", "elementwise")


def test_raspberry_pis_train_21_models_as_fast_as_published_by_kind_of_operation() -> None:
    off: dict[str, list[float]] = {"raspberry-pi-5": [], "raspberry-pi-4": []}
    for name, (counts, *seconds) in PUBLISHED.items():
        step = Operations(1e9 * sum(counts[:4]), dict(zip(FITTED_KINDS, 1e9 * np.array(counts), strict=True)), {})
        for board, of_board in zip(off, seconds, strict=True):
            if of_board is not None:
                throughput, overhead = speed(devices()[board], (name, "conv"), step)
                off[board].append(math.log((overhead + 16 * step.flops / throughput) / (of_board / 20)))
    errors = np.array(off["raspberry-pi-5"])
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(0.074, abs=0.002)
    assert np.abs(errors).max() == pytest.approx(0.17, abs=0.01)
    assert np.abs(off["raspberry-pi-4"]).max() < 0.09


def test_a_model_that_the_rates_by_kind_are_not_fitted_to_is_off_by_a_tenth() -> None:
    names = list(PUBLISHED)
    counts = np.array([PUBLISHED[name][0] for name in names]) * 16e9
    seconds = np.array([PUBLISHED[name][1] for name in names]) / 20
    # As edge.profile.fit: relative errors, and no FLOPs faster than twice the fastest model's.
    most = 2 * max(16e9 * sum(of[:4]) * 20 / took for of, took, _ in PUBLISHED.values())
    least = np.array([1 / most] * 4 + [0.0])

    def costs(rows: NDArray[np.bool_]) -> NDArray[np.float64]:
        relative = counts[rows] / seconds[rows, None]
        scale = relative.max(axis=0)
        found = lsq_linear(relative / scale, np.ones(rows.sum()), (least * scale, np.inf), method="bvls").x
        fitted: NDArray[np.float64] = found / scale
        return fitted

    every = np.full(len(names), True)
    shipped = devices()["raspberry-pi-5"].operations_per_second
    assert dict(zip(FITTED_KINDS, 1 / costs(every), strict=True)) == pytest.approx(shipped, rel=0.005)
    others = [every ^ (np.arange(len(names)) == left_out) for left_out in range(len(names))]
    errors = [math.log(counts[~rows][0] @ costs(rows) / seconds[~rows][0]) for rows in others]
    assert math.sqrt(np.mean(np.square(errors))) == pytest.approx(0.098, abs=0.002)


def test_phones_train_mobilenet_as_fast_and_as_frugally_as_published() -> None:
    # Benchmark-On-Device-Training: a Mi 9 takes 4.53 s per batch of 16, a Meizu 16T 4.81 s and 0.60 J per example.
    assert _batch_seconds("phone-high", "depthwise", MOBILENET_V2_MACS) == pytest.approx(4.53, rel=0.02)
    seconds = _batch_seconds("meizu-16t", "depthwise", MOBILENET_V2_MACS)
    assert seconds == pytest.approx(4.81, rel=0.02)
    assert devices()["meizu-16t"].train_watts * seconds == pytest.approx(9.6, rel=0.02)


@pytest.mark.parametrize(
    ("device", "milliseconds"),
    [("phone-high", (9.658, 12.346, 13.750, 16.260, 19.145)), ("meizu-16t", (10.089, 11.291, 12.235, 14.350, 17.332))],
)
def test_the_step_of_a_phone_is_that_of_its_times_of_lenet(device: str, milliseconds: tuple[float, ...]) -> None:
    # Benchmark-On-Device-Training: LeNet (20 and 50 filters of 5x5, 500 hidden) at batches of 1, 2, 4, 8 and 16.
    batches = np.array([1, 2, 4, 8, 16])
    macs = 24**2 * 20 * 25 + 8**2 * 50 * 20 * 25 + 800 * 500 + 500 * 10
    slope, step = np.polyfit(batches, milliseconds, 1)
    row = devices()[device]
    assert 1e3 * row.step_seconds == pytest.approx(step, abs=0.05)
    # The line's slope is a throughput of 24 and 30 GFLOP/s; the row's, of AlexNet, predicts LeNet within 20 %.
    modelled = 1e3 * (row.step_seconds + 6 * macs * batches / row.throughput("conv"))
    assert modelled == pytest.approx(np.array(milliseconds), rel=0.2)
    assert 6 * macs / slope / 1e6 == pytest.approx(row.throughput("conv") / 1e9, rel=0.3)


def test_classes_of_phones_spread_as_flash_measured() -> None:
    # FLASH, FEMNIST's CNN: 1642, 588 and 179 ms per batch. The ratio holds for any model and batch.
    for family in ("conv", "depthwise"):
        for macs in (1e5, 1e9):
            low, mid, high = (_batch_seconds(f"phone-{name}", family, macs) for name in ("low", "mid", "high"))
            assert low / high == pytest.approx(1642 / 179, rel=0.01)
            assert mid / high == pytest.approx(588 / 179, rel=0.01)


def test_the_published_figures_of_lte_and_wifi_stand_in_their_rows() -> None:
    # Huang et al., MobiSys 2012: medians, and Table 4 in mW per Mbit/s (1e-9 J/bit), mW and seconds.
    lte, wifi = networks()["lte-2012"], networks()["wifi-2012"]
    assert (lte.down_bits_per_second, lte.up_bits_per_second) == (13e6, 6e6)
    assert (lte.transmit_joules_per_bit, lte.receive_joules_per_bit, lte.base_watts) == (438e-9, 52e-9, 1.288)
    assert (lte.tail_watts, lte.tail_seconds) == (1.06, 11.6)
    assert (wifi.transmit_joules_per_bit, wifi.receive_joules_per_bit, wifi.base_watts) == (283e-9, 137e-9, 0.133)
    assert wifi.tail_seconds == 0.24
    # AT&T's Application Resource Optimizer, and the median in a carrier's network (Huang et al., SIGCOMM 2013).
    assert (lte.promotion_seconds, lte.promotion_watts) == (0.26, 1.21)
    assert networks()["lte"].promotion_seconds == 0.435
    # Losses and outages are those of the networks that were measured; nothing wired or on Wi-Fi is promoted.
    assert {name: row.loss for name, row in networks().items() if row.loss} == {"lte-2012": 0.0006}
    broken = {
        name: (row.outages_per_hour, row.outage_seconds) for name, row in networks().items() if row.outage_seconds
    }
    assert broken == {"broadband": (0.021, 45.0)}
    assert [row.name for row in networks().values() if row.promotion_seconds] == [
        "lte-2012",
        "lte",
        "mobile-world",
        "5g",
    ]


def test_jetsons_train_as_fast_as_published() -> None:
    # jetson-inference: on a Nano ResNet-18 takes 15 min for 10,475 images in batches of 8, a Xavier NX trains 14.65
    # images/s of SSD-Mobilenet in batches of 4.
    nano, nx = devices()["jetson-nano"], devices()["jetson-xavier-nx"]
    batch = nano.step_seconds + 6 * RESNET18_MACS * 8 / nano.throughput("conv")
    assert 10_475 / 8 * batch == pytest.approx(15 * 60, rel=0.1)
    ssd_macs = 1.33e9
    assert 4 / (nx.step_seconds + 6 * ssd_macs * 4 / nx.throughput("depthwise")) == pytest.approx(14.65, rel=0.01)
    nano_batch = nano.step_seconds + 6 * ssd_macs * 4 / nano.throughput("depthwise")
    assert 4 / nano_batch == pytest.approx(4.77, rel=0.01)


@pytest.mark.parametrize("name", [name for name in networks() if name != "lte"])
def test_both_models_of_radio_power_agree_at_the_rows_own_rates(name: str) -> None:
    row = networks()[name]
    sending = row.transmit_joules_per_bit * row.up_bits_per_second + row.base_watts
    receiving = row.receive_joules_per_bit * row.down_bits_per_second + row.base_watts
    assert sending == pytest.approx(row.transmit_watts, rel=0.01)
    assert receiving == pytest.approx(row.receive_watts, rel=0.01)


# --- throughput by model and family -----------------------------------------------------------------------------------


def test_a_model_that_was_measured_goes_before_its_family(tmp_path: Path) -> None:
    path = _file(tmp_path, flops_per_second='{ conv = 1e9, depthwise = 2e8, digits-cnn = 6e8, "mine:ROW" = 3 }')
    measured = own_rows(path, Device)["toaster"]
    assert measured.throughput("digits-cnn", "conv") == 6e8
    assert measured.throughput("mine:ROW", "conv") == 3.0
    assert measured.throughput("resnet18", "conv") == 1e9
    assert TOASTER.throughput("digits-cnn", "conv") == 1e9


def test_a_family_without_a_figure_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ValueError) as error:
        TOASTER.throughput("vit", "attention")
    assert str(error.value) == (
        "device 'toaster' has no throughput for models of family 'attention', only for conv, depthwise"
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_good_row_is_read_into_its_types(tmp_path: Path) -> None:
    (row,) = read_rows(_file(tmp_path), Device).values()
    assert row == TOASTER
    assert [type(row.step_seconds), type(row.modes), type(row.flops_per_second)] == [float, tuple, dict]


def test_a_row_without_a_slowdown_of_codecs_has_one_by_its_clock(tmp_path: Path) -> None:
    row = own_rows(_file(tmp_path, codec_slowdown=None, clock_hz="1.45e9"), Device)["toaster"]
    assert row.codec_slowdown == pytest.approx(2.0)
    assert basis(row, "codec_slowdown") == "assumed"


def test_the_rate_of_memory_of_a_row_without_it_follows_from_how_much_longer_codecs_take(tmp_path: Path) -> None:
    row = own_rows(_file(tmp_path, memory_bytes_per_second=None), Device)["toaster"]
    assert row.memory_bytes_per_second == pytest.approx(16.8e9 / 3)
    assert basis(row, "memory_bytes_per_second") == "assumed"


RATES = "encode = [1e6, 2e6, 3e6], decode = [4, 5, 6]"


def test_a_row_may_have_rates_of_codecs_of_its_own(tmp_path: Path) -> None:
    row = own_rows(_file(tmp_path, codecs=f"{{ quantize = {{ {RATES} }} }}"), Device)["toaster"]
    assert row.codecs == {"quantize": CodecRates((1e6, 2e6, 3e6), (4.0, 5.0, 6.0))}
    assert basis(row, "codecs.quantize") == "training"


def test_a_network_may_leave_out_loss_outages_and_promotion_and_then_assumes_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(LINE)
    row = own_rows(path, Network)["string"]
    assert [getattr(row, key) for key in LEFT_OUT] == [0.0] * 5
    assert row.assumed == LEFT_OUT
    path.write_text(LINE + "loss = 0.01\npromotion_seconds = 0.26\nderived = ['loss']\n")
    row = own_rows(path, Network)["string"]
    assert (row.loss, row.promotion_seconds) == (0.01, 0.26)
    assert row.assumed == ("outages_per_hour", "outage_seconds", "promotion_watts")
    assert [basis(row, key) for key in ("loss", "promotion_seconds", "promotion_watts")] == [
        "derived",
        "measured",
        "assumed",
    ]


STEP = (
    'model = "cnn", fitted = false, batch = 8, flops_per_example = 1e6, measured_seconds = 0.5, predicted_seconds = 0.4'
)


def test_a_row_may_have_the_steps_that_were_measured_which_are_no_figures(tmp_path: Path) -> None:
    measurements = f"[{{ {STEP} }}, {{ {STEP}, width = 16 }}]"
    row = read_rows(_file(tmp_path, measurements=measurements), Device)["toaster"]
    step = MeasuredStep("cnn", False, 8, 1e6, 0.5, 0.4)
    assert row == replace(TOASTER, measurements=(step, replace(step, width=16)))
    assert figures(asdict(row)) == figures(asdict(TOASTER))


def test_texts_with_units_stand_for_numbers_in_si(tmp_path: Path) -> None:
    texts = {"flops_per_second": '{ conv = "1 GFLOP/s", depthwise = "200 MFLOP/s" }', "memory_bytes": '"1 MB"'}
    texts |= {"step_seconds": '"0 ms"', "train_watts": '"5000 mW"', "clock_hz": '"1 GHz"'}
    assert own_rows(_file(tmp_path, **texts), Device) == {"toaster": TOASTER}
    line = tmp_path / "line.toml"
    line.write_text(LINE)
    plain = read_rows(line, Network)
    line.write_text(
        LINE.replace("= 8", '= "0.008 kbit/s"')
        .replace("tail_seconds = 11", 'tail_seconds = "11000 ms"')
        .replace("transmit_watts = 1", 'transmit_watts = "1 W"')
    )
    assert read_rows(line, Network) == plain


def test_each_figure_has_one_basis(tmp_path: Path) -> None:
    lists = {"assumed": '["idle_watts"]', "inference": '["train_watts"]', "derived": '["flops_per_second.conv"]'}
    row = own_rows(_file(tmp_path, **lists), Device)["toaster"]
    keys = ("idle_watts", "train_watts", "flops_per_second.conv", "flops_per_second.depthwise")
    assert [basis(row, key) for key in keys] == ["assumed", "inference", "derived", "training"]
    with pytest.raises(KeyError):
        basis(row, "year")
    with pytest.raises(ValueError) as error:
        own_rows(_file(tmp_path, assumed="true", derived='["modes"]'), Device)
    assert str(error.value) == "rows.toml: row 'toaster': figure 'modes' is in 'derived' and 'assumed'; keep it in one"
    with pytest.raises(ValueError, match=r"row 'toaster', key 'inference': the row has no figure 'wats', "):
        own_rows(_file(tmp_path, inference='["wats"]'), Device)


ONE_OF = "expected a list of the keys of figures, true (all) or false (none), not "
FIGURE, MODES = "the row has no figure ", "the first must be 1.0, full speed, and none above it, not "


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("year", None, ": key 'year' is missing"),
        ("idle_wats", "3", ": unknown key 'idle_wats', did you mean 'idle_watts'?"),
        ("year", '"2024"', "{key}: expected int, not '2024'"),
        ("memory_bytes", '"4 Gb"', "{key}: '4 Gb' is not bytes: unknown unit 'Gb', did you mean 'GB'?"),
        ("train_watts", '"6"', "{key}: '6' is a power without a unit: add one of mW, W, kW"),
        (
            "flops_per_second",
            '{ conv = "5 GFLOPS", depthwise = 1e9 }',
            ", key 'flops_per_second.conv': '5 GFLOPS' is not a speed of computing: unknown unit 'GFLOPS', "
            "did you mean '5 GFLOP/s'?",
        ),
        ("assumed", "1", f"{{key}}: {ONE_OF}1"),
        ("assumed", '["idle_wats"]', f"{{key}}: {FIGURE}'idle_wats', did you mean 'idle_watts'?"),
        ("train_watts", "-1", "{key}: -1.0 is out of range"),
        ("memory_bytes", "0", "{key}: 0 is out of range"),
        ("flops_per_second", "{ conv = 1e9 }", ": key 'flops_per_second.depthwise' is missing"),
        ("flops_per_second", "{ conv = 1, depthwise = 0 }", ", key 'flops_per_second.depthwise': 0.0 is out of range"),
        ("modes", "[]", "{key}: expected a list of numbers, not []"),
        ("modes", "[0.5, 1]", f"{{key}}: {MODES}[0.5, 1]"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, key: str, value: str | None, message: str) -> None:
    with pytest.raises(ValueError) as error:
        read_rows(_file(tmp_path, **{key: value}), Device)
    named = f", key '{key}'"
    assert str(error.value) == f"rows.toml: row 'toaster'{message.format(key=named)}"


@pytest.mark.parametrize("text", [b"[toaster", b"toaster = 3", b"# \xff"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "rows.toml"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=r"^rows\.toml: "):
        read_rows(path, Network)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "absent.toml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError) as error:
            own_rows(path, Device)
        assert str(error.value) == f"{path}: cannot be read: {why}"


def test_a_users_own_file_cannot_take_a_shipped_name(tmp_path: Path) -> None:
    path = _file(tmp_path)
    path.write_text(path.read_text().replace("[toaster]", "[jetson-nano]"))
    with pytest.raises(ValueError) as error:
        own_rows(path, Device)
    assert str(error.value) == "rows.toml: row 'jetson-nano': a device of that name ships; give it another"

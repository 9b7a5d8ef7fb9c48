"""A virtual cluster's arguments: what they mean, and what cannot be."""

from typing import Any

import pytest

from headrace.engines.network import Network
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        *[
            (text, 12.5e6)
            for text in ("100Mbit", "100 mbit", "100 MBit/s", "100 Mb", "100 Mb/s", "100Mbps", "100 mbps")
        ],
        *[(text, 125e6) for text in ("1 Gbit", "1 gbits", "1 Gb", "1Gb/s", "1 Gbps", "1e9 bit", "1e6 kbps", "1E6 Kb")],
        *[(text, 12e6) for text in ("12 MB", "12MB/s", "12 MBps", "12000 kB", "12000 KB", "0.012 GB")],
        *[("1 MiB", 2**20), ("0.5 kbit/s", 62.5), ("2 GiB/s", 2**31), ("3 B", 3), ("1 Tb", 125e9), ("1 TB", 1e12)],
    ],
)
def test_a_bandwidth_is_read(text: str, bytes_per_s: float) -> None:
    assert Network(bandwidth=text).bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "unit", ["gb", "mb", "kb", "b", "mB", "gB", "GBPS", "gBps", "mib", "Mib", "bytes", "Mbut", "G", "s"]
)
def test_a_bandwidth_that_may_be_bits_or_bytes_is_refused_with_a_list_of_units(unit: str) -> None:
    with pytest.raises(ConfigError, match=rf"unit '{unit}' is unknown, or may be bits or bytes.* Gbit .* Gbps .* GB"):
        Network(bandwidth=f"1 {unit}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("50 us", 5e-5), ("50µs", 5e-5), ("12.5 s", 12.5), ("2 min", 120), ("1e-3 s", 1e-3)]
)
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert Network(latency=text).latency_s == pytest.approx(seconds)


def test_an_update_takes_as_long_as_rows_and_speed_say() -> None:
    network = Network(rows_per_s=100, speeds=[1, 2])
    assert [network.computing_s(worker, 0, 50) for worker in (0, 1)] == [0.5, 0.25]
    assert Network(rows_per_s=100, speeds={3: 0.1}).computing_s(3, 0, 10) == pytest.approx(1.0)
    assert Network(rows_per_s=100, speeds={3: 0.1}).computing_s(2, 0, 10) == pytest.approx(0.1)


def test_slow_updates_are_as_many_as_said_and_always_the_same_ones() -> None:
    network = Network(rows_per_s=1, stragglers={1: (0.25, 4.0)}, seed=7)
    times = [network.computing_s(1, update, 1) for update in range(4000)]
    assert set(times) == {1.0, 4.0}
    assert 0.22 < times.count(4.0) / 4000 < 0.28
    assert times == [
        Network(rows_per_s=1, stragglers={1: (0.25, 4.0)}, seed=7).computing_s(1, k, 1) for k in range(4000)
    ]
    assert times != [
        Network(rows_per_s=1, stragglers={1: (0.25, 4.0)}, seed=8).computing_s(1, k, 1) for k in range(4000)
    ]
    assert {network.computing_s(0, update, 1) for update in range(100)} == {1.0}


def test_workers_are_slow_at_different_updates() -> None:
    network = Network(rows_per_s=1, stragglers={0: (0.5, 2.0), 1: (0.5, 2.0)})
    first, second = ([network.computing_s(worker, k, 1) for k in range(100)] for worker in (0, 1))
    assert first != second


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"bandwidth": "fast"}, 'bandwidth= is a number and a unit, as in "100 Mbit"'),
        ({"bandwidth": 100}, 'bandwidth= is a number and a unit, as in "100 Mbit"'),
        ({"bandwidth": "100 Mbut"}, "unit 'Mbut' is unknown"),
        ({"bandwidth": "0 Mbit"}, "bandwidth= is greater than 0"),
        ({"latency": "50"}, 'latency= is a number and a unit, as in "50 us"'),
        ({"latency": "-1 s"}, "latency="),
        ({"latency": "nan s"}, "latency="),
        ({"rows_per_s": 0}, "rows_per_s= is a number greater than 0, got 0"),
        ({"rows_per_s": float("inf")}, "rows_per_s="),
        ({"rows_per_s": True}, "rows_per_s="),
        ({"speeds": [1, 0]}, "speeds of worker 1= is a number greater than 0"),
        ({"speeds": "fast"}, "speeds= is a factor for every worker"),
        ({"speeds": {-1: 2}}, "speeds= names workers by their numbers"),
        ({"speeds": {"0": 2}}, "speeds= names workers by their numbers"),
        ({"stragglers": {0: 0.5}}, "stragglers="),
        ({"stragglers": {0: (1.5, 2)}}, "a probability"),
        ({"stragglers": {0: (0.5, 0.5)}}, "a factor"),
        ({"stragglers": 3}, "stragglers= looks like"),
        ({"seed": 0.5}, "seed="),
    ],
)
def test_what_cannot_be_is_said(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Network(**wrong)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (Network(speeds=[1, 2, 3]), "speeds= has one factor for each of the 4 workers, got 3"),
        (Network(speeds={4: 2}), "speeds= is of workers 0 to 3, got worker 4"),
        (Network(stragglers={4: (0.5, 2)}), "stragglers= is of workers 0 to 3"),
    ],
)
def test_a_worker_that_is_not_there_is_an_error(network: Network, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        network.check(4)
    network.check(10) if not isinstance(network.speeds, list) else Network(speeds=[1] * 4).check(4)

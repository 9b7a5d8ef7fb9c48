"""A virtual cluster's arguments: what they mean, and what is refused."""

from typing import Any

import pytest

from headrace.engines.network import Network
from headrace.errors import ConfigError

BANDWIDTHS = {
    12.5e6: ("100Mbit", "100 mbit", "100 MBit/s", "100 Mb", "100 Mb/s", "100Mbps", "100 mbps"),
    125e6: ("1 Gbit", "1 gbits", "1 Gb", "1Gb/s", "1 Gbps", "1e9 bit", "1e6 kbps", "1E6 Kb"),
    12e6: ("12 MB", "12MB/s", "12 MBps", "12000 kB", "12000 KB", "0.012 GB"),
    2.0**20: ("1 MiB",),
    62.5: ("0.5 kbit/s",),
    125e9: ("1 Tb",),
}
LATENCIES = {"50 us": 5e-5, "50µs": 5e-5, "12.5 s": 12.5, "2 min": 120, "1e-3 s": 1e-3}
UNCLEAR = ("gb", "mb", "kb", "b", "mB", "gB", "GBPS", "gBps", "mib", "Mib", "bytes", "Mbut", "G", "s")


def test_bandwidths_and_latencies_are_read_by_their_units() -> None:
    for bytes_per_s, texts in BANDWIDTHS.items():
        for text in texts:
            assert Network(bandwidth=text).bytes_per_s == pytest.approx(bytes_per_s), text
    for text, seconds in LATENCIES.items():
        assert Network(latency=text).latency_s == pytest.approx(seconds), text


def test_a_bandwidth_that_may_be_bits_or_bytes_is_refused_with_a_list_of_units() -> None:
    for unit in UNCLEAR:
        with pytest.raises(
            ConfigError, match=rf"unit '{unit}' is unknown, or may be bits or bytes.* Gbit .* Gbps .* GB"
        ):
            Network(bandwidth=f"1 {unit}")


def test_an_update_takes_as_long_as_rows_and_speed_say() -> None:
    network = Network(rows_per_s=100, speeds=[1, 2])
    assert [network.computing_s(worker, 0, 50) for worker in (0, 1)] == [0.5, 0.25]
    some = Network(rows_per_s=100, speeds={3: 0.1})
    assert [some.computing_s(worker, 0, 10) for worker in (3, 2)] == pytest.approx([1.0, 0.1])


def test_slow_updates_are_as_many_as_wanted_the_same_ones_every_time_and_others_for_each_worker() -> None:
    def times(worker: int, seed: int = 7) -> list[float]:
        network = Network(rows_per_s=1, stragglers={0: (0.25, 4.0), 1: (0.25, 4.0)}, seed=seed)
        return [network.computing_s(worker, update, 1) for update in range(4000)]

    found = times(1)
    assert set(found) == {1.0, 4.0}
    assert 0.22 < found.count(4.0) / 4000 < 0.28
    assert found == times(1)
    assert found != times(1, seed=8)
    assert found != times(0)
    assert set(times(2)) == {1.0}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"bandwidth": "fast"}, 'bandwidth= is a number and a unit, as in "100 Mbit"'),
        ({"bandwidth": 100}, 'bandwidth= is a number and a unit, as in "100 Mbit"'),
        ({"bandwidth": "0 Mbit"}, "bandwidth= is greater than 0"),
        ({"latency": "50"}, 'latency= is a number and a unit, as in "50 us"'),
        ({"latency": "-1 s"}, "latency="),
        ({"latency": "1 sec"}, "latency='1 sec': unknown unit"),
        ({"rows_per_s": 0}, "rows_per_s= is a number greater than 0, got 0"),
        ({"rows_per_s": float("inf")}, "rows_per_s="),
        ({"rows_per_s": True}, "rows_per_s="),
        ({"speeds": [1, 0]}, "speeds of worker 1= is a number greater than 0"),
        ({"speeds": "fast"}, "speeds= is a factor for every worker"),
        ({"speeds": {-1: 2}}, "speeds= names workers by their numbers"),
        ({"speeds": {"0": 2}}, "speeds= names workers by their numbers"),
        ({"speeds": [1, 2, 3]}, "speeds= has one factor for each of the 4 workers, got 3"),
        ({"speeds": {4: 2}}, "speeds= is of workers 0 to 3, got worker 4"),
        ({"stragglers": {0: 0.5}}, "stragglers="),
        ({"stragglers": {0: (1.5, 2)}}, "a probability"),
        ({"stragglers": {0: (0.5, 0.5)}}, "a factor"),
        ({"stragglers": 3}, "stragglers= looks like"),
        ({"stragglers": {4: (0.5, 2)}}, "stragglers= is of workers 0 to 3"),
        ({"seed": 0.5}, "seed="),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Network(**wrong).check(4)
    assert text in str(caught.value)

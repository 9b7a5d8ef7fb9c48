"""A virtual cluster's arguments: what they mean, and what is refused."""

from typing import Any

import pytest

from headrace.engines.network import Network
from headrace.errors import ConfigError

BANDWIDTHS = {
    12.5e6: ("100Mbit", "100 Mbit/s"),
    125e6: ("1 Gbit", "1e9 bit"),
    12e6: ("12 MB", "12000 kB/s", "0.012 GB"),
}
LATENCIES = {"50 us": 5e-5, "50µs": 5e-5, "12.5 s": 12.5, "1e-3 s": 1e-3}
UNCLEAR = ("Gb", "gb", "Mb", "Mbps", "mbit", "kb", "b", "mB", "MiB", "bytes", "G", "s")


def test_bandwidths_and_latencies_are_read_by_their_units() -> None:
    for bytes_per_s, texts in BANDWIDTHS.items():
        for text in texts:
            assert Network(bandwidth=text).bytes_per_s == pytest.approx(bytes_per_s), text
    for text, seconds in LATENCIES.items():
        assert Network(latency=text).latency_s == pytest.approx(seconds), text


def test_an_update_takes_as_long_as_rows_and_speed_say() -> None:
    network = Network(rows_per_s=100, speeds=[1, 2])
    assert [network.computing_s(worker, 50) for worker in (0, 1)] == [0.5, 0.25]
    some = Network(rows_per_s=100, speeds={3: 0.1})
    assert [some.computing_s(worker, 10) for worker in (3, 2)] == pytest.approx([1.0, 0.1])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        *(({"bandwidth": f"1 {unit}"}, "a number and a unit, one of bit, kbit, Mbit, Gbit, ") for unit in UNCLEAR),
        ({"bandwidth": 100}, "bandwidth= is a number and a unit, one of bit, "),
        ({"bandwidth": "0 Mbit"}, "bandwidth= is greater than 0"),
        ({"latency": "50"}, "latency= is a number and a unit, one of us, µs, ms, s; got '50'."),
        ({"latency": "-1 s"}, "latency="),
        ({"rows_per_s": 0}, "rows_per_s= is a number greater than 0, got 0"),
        ({"rows_per_s": True}, "rows_per_s="),
        ({"speeds": [1, 0]}, "speeds of worker 1= is a number greater than 0"),
        ({"speeds": "fast"}, "speeds= is a factor for every worker"),
        ({"speeds": {-1: 2}}, "speeds= names workers by their numbers"),
        ({"speeds": [1, 2, 3]}, "speeds= has one factor for each of the 4 workers, got 3"),
        ({"speeds": {4: 2}}, "speeds= is of workers 0 to 3, got worker 4"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Network(**wrong).check(4)
    assert text in str(caught.value)

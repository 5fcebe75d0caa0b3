"""A tuning run's worker on the fake device: the script's times and faults are by configuration."""

from fake_device import FakeBench

from dsmla_bench.bench.tune import TuneBench


class FakeTuneBench(FakeBench):
    def __init__(self, config):
        super().__init__(config)
        self.bench = TuneBench(self.bench)

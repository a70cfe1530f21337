"""Time for tests and simulations."""

from chicle_elastic.clock import VirtualClock as VirtualClock

"""Fuzz tests draw the same examples each time, so that a run of the tests says what the last did.

`HYPOTHESIS_PROFILE=search` draws new ones, and many more; `few` draws ten.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
settings.register_profile("same", derandomize=True, database=None, max_examples=60, **COMMON)
settings.register_profile("few", settings.get_profile("same"), max_examples=10)
settings.register_profile("search", database=None, max_examples=3000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# else constants of every module that other tests have imported by then are drawn as well
providers._get_local_constants = lambda: providers._local_constants

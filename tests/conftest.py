"""Property tests draw the same examples every time: what stops a run can be run again. To look for
new ones: `HYPOTHESIS_PROFILE=explore make test T=...`."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

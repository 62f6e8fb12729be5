"""Property tests draw the same examples every time: what stops a run can be run again. To look for
new ones: `HYPOTHESIS_PROFILE=explore make test T=...`."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: how long an example takes beside other tests says nothing of it.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

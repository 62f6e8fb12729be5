"""Of the workers of a test run each has a cluster of its own. To be imported before anything of the
cluster, whose places go by the number."""

import os

if name := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["HOLDFAST_CLUSTER_NUMBER"] = name.removeprefix("gw")

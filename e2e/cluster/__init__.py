"""A real Kubernetes with two worker nodes on this machine, for the end-to-end tests and the demo.

    python -m e2e.cluster up | down | status | build | tools | leftovers

Where a Docker or Podman engine runs it is kind's (`kind.py`); elsewhere it is made of namespaces
(`namespaces.py`, with `control.py` and `nodes.py`). `build.py` makes what never changes (programs,
root file systems, images) once, in a cache outside the checkout. `running.py` says what both can
do; `faults.py` breaks the one that runs in the ways a test needs.
"""

"""A real Kubernetes with two worker nodes on this machine, for the end-to-end tests and the demo.

    python -m e2e.cluster up | down | status | build

`build.py` makes what never changes (programs, root file systems, images) once, in a cache outside
the checkout; `control.py` and `nodes.py` start it; `faults.py` breaks it in the ways a test needs.
Where a Docker or Podman engine runs, `kind.py` has the same with kind.
"""

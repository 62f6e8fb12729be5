"""Where clients come in: authenticated once, then passed through to the session's sidecar.

The gateway keeps no session state. Killing it loses nothing: sidecars go on, and a restarted
gateway takes the same port and token, so that an open page finds its way back by itself.
"""

__version__ = "0.1.0"

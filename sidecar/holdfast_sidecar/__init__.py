"""The sidecar: holds the PTY, keeps the screen, and is the one place where a session's inputs,
outputs and participants are put in order. Small on purpose: its imports are pinned by a test."""

__version__ = "0.1.0"

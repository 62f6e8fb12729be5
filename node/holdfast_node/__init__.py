"""What needs privilege on a node: taking a live session out of one container and into another."""

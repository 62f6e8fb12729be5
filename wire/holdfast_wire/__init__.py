"""The words every part of holdfast shares: ids, frames and errors. No I/O, no dependencies."""

"""The operator: turns Sessions into pods, Leases and, when an incarnation is lost, the next one."""

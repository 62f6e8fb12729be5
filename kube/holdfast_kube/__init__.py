"""The API server, for the parts that are not small: operator and node agent."""

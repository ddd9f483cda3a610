"""A flow-level simulator: many jobs on uneven, changing links; any plan; thousands of hosts. Pure."""

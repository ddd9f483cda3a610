"""Flow statistics into findings: which host's uplink or downlink, or which path, lost capacity. Pure."""

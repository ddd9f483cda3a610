"""A plan on the simulated network: as pieces, in rounds, as fluids."""

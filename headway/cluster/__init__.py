"""Hosts, links, capacities and units: the model that every other part shares. Pure."""

"""Stand-ins that tests share, one for each protocol that has a real driver."""

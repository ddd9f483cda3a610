"""Moving bytes between the ranks of one group, and what each flow did meanwhile."""

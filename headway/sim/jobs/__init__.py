"""Jobs: loops of computing and communicating, who chooses their plans, and how they take turns."""

"""Files of other simulators: read, and run here. Pure, apart from reading the files."""

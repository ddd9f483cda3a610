"""Jobs that take turns on a link: how hard a flow pushes follows how far its training iteration is (MLTCP, MLCC)."""

"""Many runs: plans side by side, sweeps, REACT's study."""

"""An emulated cluster: namespaces, shaped links, real TCP."""

"""Which replicas there are: from a list, a file, DNS or Kubernetes, followed while the gateway runs."""

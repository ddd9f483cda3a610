"""From a placed plan to what runs it: Kubernetes manifests, a compose file, the gateway's file; and applying it."""

"""How GPUs are shared out among the models of workflows: predicted, searched, placed. Pure."""

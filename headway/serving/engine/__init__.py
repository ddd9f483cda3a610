"""An engine that batches continuously, as a model: it says when each token of each request is there. Pure."""

"""The torch.distributed backend `headway`."""

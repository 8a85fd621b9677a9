"""digits: a Flower / PyTorch app."""

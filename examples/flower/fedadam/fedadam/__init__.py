"""fedadam: a Flower / PyTorch app with one of Flower's own strategies."""

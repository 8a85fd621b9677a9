"""local-dp: a Flower / PyTorch app whose clients clip their updates and add noise to them."""

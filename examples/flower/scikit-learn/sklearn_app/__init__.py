"""scikit-learn: a Flower app without torch."""

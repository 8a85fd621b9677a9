"""The Python interface, which the root module ``fedbr`` exports. No module of the product imports it."""

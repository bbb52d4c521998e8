"""Jobs as the controller runs, lists and explains them."""

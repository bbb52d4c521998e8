"""HTTP: translates what is asked, has the controller do it, and translates the answer back."""

"""The HTTP API: translate a request, have the controller run it, translate the answer back."""
